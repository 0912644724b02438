"""Other memories, measured with the same texts and vectors. They live in an environment of their own."""
