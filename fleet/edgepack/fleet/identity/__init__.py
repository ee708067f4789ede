"""Certificates of devices: issue, issue again, and revoke."""
