from hypothesis import HealthCheck, settings

# What is tested is what comes out, not how fast a busy machine makes it.
settings.register_profile("leases", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("leases")
