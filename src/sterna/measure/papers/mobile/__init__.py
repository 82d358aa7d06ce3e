"""The experiment of a thesis on brokers that move: MFT-PubSub and AODV on a simulated radio."""
