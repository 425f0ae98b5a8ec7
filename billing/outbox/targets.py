READ_MODEL = "read-model"


def target_names() -> list[str]:
    return [READ_MODEL]
