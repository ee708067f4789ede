"""The model server: serves all models of a device by the Open Inference Protocol v2.

Peers are untrusted. A request has limits of length and time, connections have a number, and the
bytes of all running requests have a budget. A request beyond a limit gets an error; other requests
are not affected.
"""
