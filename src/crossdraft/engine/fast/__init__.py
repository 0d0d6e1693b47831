"""Speed alone, never a result: lean passes, packed weights, CPU cores."""
