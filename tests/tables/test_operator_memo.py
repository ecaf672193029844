"""`OperatorMemo` and `NetworkRuns`: what is kept, what is said of it, and what a hostile file cannot do."""

from __future__ import annotations

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nni_latency.errors import FileFormatError, InvalidValueError, MismatchError, OutputError
from nni_latency.measurement import Protocol
from nni_latency.platforms import Platform
from nni_latency.tables import MemoWarning, NetworkRuns, OperatorMemo, default_memo_path

HERE = Platform("here", facts={"torch": "2.13.0", "load": 1.5})
PLAIN = Protocol(outlier=0.0, statistic=0.5)

times = st.floats(1e-7, 10.0)


def _runs(network="n", reference=1.0, whole=(3.0,), operators=("a", "b"), n_calls=(1, 1), parts=((1.0,), (2.0,))):
    return NetworkRuns(network, reference, whole, operators, n_calls, parts)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "memo.jsonl"


@pytest.fixture
def memo(path):
    return OperatorMemo(path, HERE)


def _add(memo, *runs):
    with memo.measuring():
        memo.add(runs)


def test_what_was_added_is_there(memo, path):
    _add(memo, _runs())
    for each in (memo, OperatorMemo(path, HERE)):
        assert each.operator("b", PLAIN).value == 2.0
        assert each.network("n", PLAIN).value == 3.0
        assert each.operator("c", PLAIN) is None
        assert len(each) == 1


def test_what_others_add_is_seen(memo, path):
    other = OperatorMemo(path, HERE)
    _add(memo, _runs())
    assert other.operator("a", PLAIN) is None
    other.refresh()
    assert other.operator("a", PLAIN).value == 1.0
    _add(other, _runs(operators=("c", "d")))
    with memo.measuring():
        assert memo.operator("d", PLAIN).value == 2.0


def test_memo_in_memory_writes_nothing(tmp_path):
    memo = OperatorMemo(None, HERE)
    _add(memo, _runs())
    assert memo.operator("a", PLAIN).value == 1.0
    assert not list(tmp_path.iterdir())


@given(st.lists(st.tuples(times, times, times), min_size=1, max_size=5), st.lists(times, min_size=1, max_size=5))
def test_parts_add_up_to_the_whole(parts, whole):
    runs = _runs(whole=tuple(whole), operators=tuple("abc"), n_calls=(1, 0, 7), parts=tuple(zip(*parts, strict=True)))
    summaries = runs.summarise_parts(Protocol())
    assert math.fsum(part.value for part in summaries) == pytest.approx(runs.summarise_whole(Protocol()).value)
    assert all(0 < part.low <= part.value <= part.high for part in summaries)


@given(st.lists(times, min_size=1, max_size=9), times)
def test_runs_are_read_back_as_they_were_written(parts, reference):
    runs = _runs(reference=reference, operators=("a",), n_calls=(2,), parts=(tuple(parts),)).rounded()
    assert NetworkRuns.of(json.loads(json.dumps(runs.content()))) == runs


def test_marks_are_taken_off_by_the_number_of_calls():
    """Four marks cost 4 us in all: the second operator has three of them."""
    runs = _runs(whole=(30e-6,), n_calls=(1, 3), parts=((11e-6,), (23e-6,)))
    assert [part.value for part in runs.summarise_parts(PLAIN)] == pytest.approx([10e-6, 20e-6])


def test_spread_over_processes_is_the_interval(memo):
    _add(memo, *(_runs(parts=((part,), (3.0 - part,))) for part in (0.9, 1.0, 1.1)))
    found = memo.operator("a", PLAIN)
    assert found.value == pytest.approx(1.0)
    assert (found.low, found.high) == pytest.approx((0.905, 1.095))
    assert (found.n_places, found.n_samples) == (3, 3)


def test_line_that_was_cut_off_is_dropped_and_written_over(memo, path):
    _add(memo, _runs())
    with path.open("ab") as file:
        file.write(b'{"network":"x","refer')
    again = OperatorMemo(path, HERE)
    assert len(again) == 1
    _add(again, _runs("m"))
    assert len(OperatorMemo(path, HERE)) == 2
    assert b"refer" not in path.read_bytes().splitlines()[-1][:10]


@pytest.mark.parametrize(
    "line",
    [
        "nonsense",
        "3",
        "[]",
        '{"network": "x"}',
        '{"network":"x","reference":1,"whole":[NaN],"operators":[],"n_calls":[],"parts":[]}',
        '{"network":"x","reference":-1,"whole":[1],"operators":[],"n_calls":[],"parts":[]}',
        '{"network":"x","reference":1,"whole":[1],"operators":["a"],"n_calls":[],"parts":[]}',
        '{"network":"x","reference":1,"whole":[1],"operators":["a"],"n_calls":[-1],"parts":[[1]]}',
        '{"network":"x","reference":1,"whole":[1],"operators":["a","b"],"n_calls":[1,1],"parts":[[1],[1,2]]}',
        '{"network":"x","reference":1,"whole":[],"operators":[],"n_calls":[],"parts":[]}',
        '{"network":"x","reference":1,"whole":[1e999],"operators":[],"n_calls":[],"parts":[]}',
        "[" * 100_000,
        '{"network":"x","reference":' + "9" * 400 + ',"whole":[1],"operators":[],"n_calls":[],"parts":[]}',
    ],
    ids=range(13),
)
def test_line_that_is_no_measurement_is_named_and_left_out(memo, path, line):
    _add(memo, _runs())
    with path.open("a") as file:
        file.write(line + "\n")
    with pytest.warns(
        MemoWarning, match=r"has lines that are no measurements, which are left out: 3\. The first one: "
    ):
        again = OperatorMemo(path, HERE)
    assert len(again) == 1
    _add(again, _runs("m"))
    assert len(again) == 2


@pytest.mark.parametrize("content", ["a stranger's letter", "a stranger's\nletter\n", '{"format": "else"}\n', "[1]\n"])
def test_file_of_another_kind_is_refused_and_left_alone(path, content):
    path.write_text(content)
    with pytest.raises(
        FileFormatError, match=r"is not a memo of measurements: its 'format' must be .* Name another file"
    ):
        OperatorMemo(path, HERE)
    assert path.read_text() == content


def test_header_that_was_cut_off_begins_anew(memo, path):
    _add(memo, _runs())
    path.write_bytes(path.read_bytes()[:60])
    again = OperatorMemo(path, HERE)
    _add(again, _runs())
    assert len(OperatorMemo(path, HERE)) == 1


def test_newer_version_names_the_remedy(memo, path):
    _add(memo, _runs())
    path.write_text(path.read_text().replace('"version":1', '"version":2'))
    with pytest.raises(FileFormatError, match=r"has version 2, this nni_latency reads up to 1\. Update it with"):
        OperatorMemo(path, HERE)


@pytest.mark.parametrize(
    ("platform", "place"),
    [
        ("null", "platform: "),
        ('{"device":"x","threads":[]}', "platform.runtime: Field required"),
        ('{"device":"A B","runtime":"torch","precision":"fp32","threads":1}', "The 'device' of a Platform must be"),
    ],
)
def test_header_without_a_platform_is_refused(path, platform, place):
    path.write_text('{"format":"nni_latency.operator_memo","version":1,"platform":' + platform + "}\n")
    with pytest.raises(FileFormatError, match=rf"The memo '.*' is not valid: {place}"):
        OperatorMemo(path, HERE)


@pytest.mark.parametrize("version", ["0", "null", '"1"'])
def test_header_without_a_version_is_refused(memo, path, version):
    _add(memo, _runs())
    path.write_text(path.read_text().replace('"version":1', f'"version":{version}'))
    with pytest.raises(FileFormatError, match=r"The memo '.*' is not valid: version: Input should be 1"):
        OperatorMemo(path, HERE)


@pytest.mark.parametrize("other", [Platform("there"), Platform("here", facts={"torch": "2.12.0"})])
def test_memo_of_another_platform_is_refused(memo, path, other):
    _add(memo, _runs())
    with pytest.raises(MismatchError, match=r"would mix two platforms"):
        OperatorMemo(path, other)


def test_file_that_was_begun_anew_is_read_anew(memo, path):
    _add(memo, _runs(), _runs("m"))
    path.unlink()
    _add(OperatorMemo(path, HERE), _runs(operators=("c", "d")))
    memo.refresh()
    assert memo.operator("a", PLAIN) is None
    assert memo.operator("c", PLAIN).value == 1.0


def test_folder_that_can_not_be_written_is_said_before_measuring(tmp_path):
    (tmp_path / "file").write_text("")
    memo = OperatorMemo(None, HERE)
    memo.path = tmp_path / "file" / "memo.jsonl"
    with pytest.raises(OutputError, match=r"Cannot write"), memo.measuring():
        raise AssertionError("measured in vain")


def test_place_is_the_users_cache(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    place = default_memo_path(HERE)
    assert place.parent == tmp_path / "nni_latency"
    assert place.name.startswith("here.torch.fp32.t1.")
    assert default_memo_path(Platform("here", facts={"torch": "3"})) != place
    assert default_memo_path(Platform("here", facts={"torch": "2.13.0", "load": 9.0})) == place
    monkeypatch.setenv("NNI_LATENCY_CACHE", str(tmp_path / "mine"))
    assert default_memo_path(HERE).parent == tmp_path / "mine"


def test_place_without_a_cache_is_in_the_home(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert default_memo_path(HERE).parent == tmp_path / ".cache" / "nni_latency"


def test_runs_that_do_not_fit_are_refused():
    with pytest.raises(InvalidValueError, match=r"as many 'operators' as 'n_calls' and 'parts'\. Got 1, 2 and 2"):
        _runs(operators=("a",))
