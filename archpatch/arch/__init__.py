"""What an architecture is: pure, no process, no network, no clock."""
