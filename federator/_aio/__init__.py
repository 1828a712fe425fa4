"""What asyncio lacks."""
