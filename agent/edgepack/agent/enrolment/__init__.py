"""Identity of a device: its enrolment package, its key, its certificate and the next
certificate.
"""
