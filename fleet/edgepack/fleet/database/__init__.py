"""The fleet's database: tables, devices, and records of events."""
