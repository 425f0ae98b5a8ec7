from redis import Redis
from redis.backoff import NoBackoff
from redis.retry import Retry


def redis_client(url: str, *, timeout_s: float) -> Redis:
    """Bounded, and without the client's own retries, which back off for seconds: whoever uses this
    has a schedule of its own."""
    return Redis.from_url(
        url,
        socket_connect_timeout=timeout_s,
        socket_timeout=timeout_s,
        retry=Retry(NoBackoff(), retries=0),
        # What comes back has one shape, whatever the server and the library prefer.
        protocol=2,
    )
