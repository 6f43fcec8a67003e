"""The picture of `agent/`: its folders in their order, and who imports whom."""
