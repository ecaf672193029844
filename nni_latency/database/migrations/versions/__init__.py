"""One module a version of the database. A module that was released is never changed."""
