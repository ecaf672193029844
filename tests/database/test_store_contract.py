# SPDX-License-Identifier: Apache-2.0
"""Every store keeps the contract, and a store that does not is found out."""

from __future__ import annotations

import pytest

from nni_latency.database import DatabaseStore
from nni_latency.measurement import MemoryStore
from nni_latency.testing import check_store


def test_memory_store_keeps_the_contract():
    check_store(MemoryStore)


@pytest.mark.slow
def test_database_keeps_the_contract(new_location):
    check_store(lambda: DatabaseStore(new_location()))


class _Forgetful(MemoryStore):
    def campaigns(self, **criteria):
        return (item for item in super().campaigns(**criteria) if len(item.records) < 3)


class _Confused(MemoryStore):
    def version(self):
        return 1


@pytest.mark.parametrize(
    ("made", "sentence"),
    [(_Forgetful, r"There must be one campaign\. Got 0"), (_Confused, r"The version must grow with all that is added")],
)
def test_store_that_breaks_the_contract_is_found_out(made, sentence):
    with pytest.raises(AssertionError, match=sentence):
        check_store(made)
