"""The picture of `agent/`: its folders in order, and the imports between them."""
