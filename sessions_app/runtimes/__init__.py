"""What runs an agent's turn: one module for each kind of agent, behind the contract in base.py."""
