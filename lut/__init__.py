# SPDX-License-Identifier: Apache-2.0
"""The lookup tables that ship with the package; `nni_latency.tables` reads them."""
