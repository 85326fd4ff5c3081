"""Linear layers, alone and with what follows them in one kernel."""
