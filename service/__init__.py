if __name__ != "leasehold.service":  # a checkout would load its modules twice
    raise ImportError(f"{__name__} has another name: import leasehold.service", name=__name__)
