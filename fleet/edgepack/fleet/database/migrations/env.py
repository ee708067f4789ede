"""Access of Alembic to the database: over the connection and in the transaction of `migrate`."""

from alembic import context

from edgepack.fleet.database.schema import Base

context.configure(connection=context.config.attributes["connection"], target_metadata=Base.metadata)
context.run_migrations()
