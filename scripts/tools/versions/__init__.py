"""Run scenarios with each supported pair of Ray and Python."""
