"""Workers and coordinators as processes, and what they share with gateways that measure."""
