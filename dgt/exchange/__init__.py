"""Moving bytes between neighbours: handshake, flat buffers and transports."""
