"""Speed alone, never a result: known decoder layers without their wrappers, packed weights, CPU cores."""
