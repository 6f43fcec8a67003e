"""What all rooms share: how a run can end, errors with their remedy, ports, addresses."""
