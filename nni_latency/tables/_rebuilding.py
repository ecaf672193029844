"""Deriving a table again from the raw samples of its campaign, with today's statistics."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from nni_latency.errors import MissingEntryError
from nni_latency.measurement import Store, StoredCampaign
from nni_latency.tables._builder import table_of
from nni_latency.tables._building import Measured
from nni_latency.tables._layer_schedule import LayerSchedule
from nni_latency.tables._lookup_table import LookupTable
from nni_latency.tables._memory_table import as_throughput
from nni_latency.tables._operator_builder import stored_operator_table
from nni_latency.tables._operator_table import OperatorTable
from nni_latency.tables._plan import MeasurePlan
from nni_latency.tables._solved import BatchSchedule, prior_of, solve_batches


def rebuild_table(
    table: LookupTable | OperatorTable, plan: Callable[[], MeasurePlan], store: Store
) -> LookupTable | OperatorTable:
    """Derive a table again from the raw samples of its campaign. Nothing is measured.

    Parameters
    ----------
    table : LookupTable or OperatorTable
        Names its campaign.
    plan : callable
        Makes the measure plan of the table's space; it is needed for lookup tables alone.
    store : Store
        Where the records are.

    Returns
    -------
    LookupTable or OperatorTable
        Of the same kind and metric, by today's statistics.

    Raises
    ------
    MissingEntryError
        If the table names no campaign, or the store does not have it.
    """
    campaign = _campaign_of(table, store)
    measured = Measured.of(campaign)
    if isinstance(table, OperatorTable):
        return measured.mark(stored_operator_table(campaign, table))
    rebuilt = measured.mark(_lookup_table(campaign, plan(), store))
    rebuilt = replace(rebuilt, protocol=table.protocol)
    return as_throughput(rebuilt) if table.metric == "throughput" else rebuilt


def _campaign_of(table: LookupTable | OperatorTable, store: Store) -> StoredCampaign:
    if not table.campaign:
        raise MissingEntryError(
            "The table names no campaign, so its raw samples are not known. Only tables that were measured with a "
            "database can be rebuilt."
        )
    found = next(store.campaigns(identifier=table.campaign), None)
    if found is None:
        raise MissingEntryError(
            f"The database does not have the campaign {table.campaign!r} of the table. Name the one it was measured "
            "with."
        )
    return found


def _lookup_table(campaign: StoredCampaign, plan: MeasurePlan, store: Store) -> LookupTable:
    protocol, platform = campaign.header.protocol, campaign.header.platform
    if campaign.header.kind == BatchSchedule.kind:
        prior, failed = prior_of(plan, campaign, store)
        batches = BatchSchedule(plan, protocol, prior, list(failed))
        batches.replay(campaign.records, campaign.failures)
        return solve_batches(batches, failed, platform)
    layers = LayerSchedule(plan, protocol)
    layers.replay(campaign.records, campaign.failures)
    return table_of(layers, platform)
