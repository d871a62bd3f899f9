"""The paper's theory as numbers: the weighted empirical Fisher information, Theorems 1 and 2, and what they rest on."""
