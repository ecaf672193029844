# SPDX-License-Identifier: Apache-2.0
"""One module a version of the database. A module that was released is never changed."""
