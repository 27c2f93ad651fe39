"""What memory buys: plans for several budgets of one step, and the largest input within one budget."""
