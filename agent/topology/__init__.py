"""Who this node is among the others, from the platform's word and the user's."""
