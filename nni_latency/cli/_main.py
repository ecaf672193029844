# SPDX-License-Identifier: Apache-2.0
"""The group of commands. A command's module is imported when it is called, so that help stays quick."""

from __future__ import annotations

import contextlib
import difflib
import importlib
import os
import sys
import traceback
from typing import IO, Any

import click
from click.shell_completion import CompletionItem

from nni_latency.cli._added import added_commands
from nni_latency.cli._messages import as_typed, folded, is_verbose, noise_options, printable, warnings_as_remarks
from nni_latency.cli._supervision import INTERRUPTED, begin_supervised, end_supervised, is_needed, supervise
from nni_latency.errors import LatencyError

#: Command to what it does, in the order in which help lists them. Its module has its name.
COMMANDS = {
    "measure": "Measure the latency of a network on this device, or compare several.",
    "predict": "Predict the cost of a network layer by layer, or compare several.",
    "profile": "Profile networks: work, memory traffic and cost of blocks, or measured operators.",
    "build-lut": "Measure the candidates of a space on this device and write a lookup table.",
    "validate": "Validate a table, or any other estimator, on unseen networks.",
    "show": "Show a file: a table, a predictor, a profile, a data set, a validation, a search.",
    "search": "Search for a network that meets a latency target, and measure it on this device.",
    "diff": "Compare two tables candidate by candidate.",
    "learn": "Learn to predict what has not been measured.",
    "table": "Convert lookup tables, and make tables of others.",
    "dataset": "Write networks as ONNX files, and measure them: data sets to learn from.",
    "db": "Inspect, share and clean up the database of measurements.",
    "devices": "Check other devices: reached, ready to measure, and what to do if not.",
    "plugins": "List what plugins registered, such as runtimes and estimators.",
}


class Failure(click.ClickException):
    """A mistake of the user: one sentence, exit code 2."""

    exit_code = 2

    def show(self, file: IO[Any] | None = None) -> None:
        """Print the sentence to stderr."""
        click.echo(folded(f"Error: {self.format_message()}"), file=file, err=True)


class LazyGroup(click.Group):
    """A group that imports a command when it is called, and turns the package's errors into failures."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.params += noise_options()

    def main(self, *args: Any, **options: Any) -> Any:
        """Run the command line; what the system refuses is said in one sentence."""
        try:
            return super().main(*args, **options)
        except OSError as error:
            _give_up_stdout()
            Failure(printable(_explain(error))).show()
            sys.exit(Failure.exit_code)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the arguments; --quiet and --verbose may stand behind any command."""
        end = args.index("--") if "--" in args else len(args)
        common = {name for item in noise_options() for name in item.opts}
        lifted = [word for word in args[:end] if word in common]
        return super().parse_args(ctx, [*lifted, *(word for word in args[:end] if word not in common), *args[end:]])

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of the commands, in order, those of plugins last."""
        return [*COMMANDS, *added_commands(COMMANDS).commands]

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command that is called; of one that there is not, name the one that is most like it."""
        name = args[0]
        if name not in COMMANDS and not name.startswith("-"):
            added = added_commands(COMMANDS)
            if name not in added.commands:
                close = difflib.get_close_matches(name[:100], [*COMMANDS, *added.commands], 1)
                hint = f" Did you mean {close[0]!r}?" if close else ""
                problems = "".join(f" {problem}" for problem in added.problems)
                raise click.UsageError(f"No such command {printable(repr(name))}.{hint}{printable(problems)}", ctx)
        return super().resolve_command(ctx, args)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import a command."""
        if cmd_name in COMMANDS:
            command: click.Command = importlib.import_module(f"nni_latency.cli._{cmd_name.replace('-', '_')}").command
            return command
        added = added_commands(COMMANDS).commands.get(cmd_name)
        return None if added is None else added.make()

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the commands without importing any."""
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))
        added = added_commands(COMMANDS)
        if added.commands:
            with formatter.section("Commands of plugins"):
                formatter.write_dl([(name, item.summary) for name, item in added.commands.items()])
        for problem in added.problems:
            formatter.write_paragraph()
            formatter.write_text(printable(problem))

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Return the commands and options that begin with what was typed, without importing any command."""
        added = {name: item.summary for name, item in added_commands(COMMANDS).commands.items()}
        known = {**COMMANDS, **added}
        names = [CompletionItem(name, help=text) for name, text in known.items() if name.startswith(incomplete)]
        return [*names, *click.Command.shell_complete(self, ctx, incomplete)]

    def invoke(self, ctx: click.Context) -> Any:
        """Run a command."""
        try:
            with warnings_as_remarks():
                return super().invoke(ctx)
        except KeyboardInterrupt:
            click.echo("\nInterrupted.", err=True)
            raise click.exceptions.Exit(INTERRUPTED) from None
        except SystemExit as error:
            # Commands end by exceptions of click: this is user code, a network's forward for instance.
            raise Failure(f"The network's own code ended the process, by sys.exit({error.code!r}).") from error
        except LatencyError as error:
            if is_verbose():
                traceback.print_exc()
            called = self.get_command(ctx, ctx.invoked_subcommand or "")
            raise Failure(printable(as_typed(str(error), called))) from error


def _explain(error: OSError) -> str:
    """Say what the system refuses: a file by its name, or what the command prints, which has none."""
    reason = error.strerror or str(error)
    if error.filename is None:
        return f"The output cannot be written: {reason}."
    return f"Cannot use the file {str(error.filename)!r}: {reason}."


def _give_up_stdout() -> None:
    """Send what is left of the output nowhere, so that ending the process does not fail once more."""
    with contextlib.suppress(OSError, ValueError, AttributeError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="nni_latency")
def main() -> None:
    """Measure and predict the cost of networks for NNI's architecture search.

    Start with: nni-latency build-lut --space fbnet
    """


def run() -> None:
    """Run the command line of this process; a command that runs networks of the user is watched."""
    arguments = sys.argv[1:]
    try:
        if is_needed(arguments):
            sys.exit(supervise(arguments))
        begin_supervised()
        try:
            # Under supervision this is another process, and its own name is not that of the command.
            main(prog_name="nni-latency")
        finally:
            end_supervised()
    except KeyboardInterrupt:
        # Before a command runs: plugins are loaded, for instance.
        click.echo("\nInterrupted.", err=True)
        sys.exit(INTERRUPTED)
