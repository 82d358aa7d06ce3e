"""An interworking node as its paper describes it: the five-part API, and on it PF and SF."""
