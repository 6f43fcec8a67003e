"""Find the versions of Ray and Python that the agent works with: run scenarios with each."""
