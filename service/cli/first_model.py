"""Where a first model may be placed."""

from service.errors import ConfigurationError
from service.settings import Settings


def require_new_home(settings: Settings, found: str) -> None:
    """Raises ConfigurationError where a model has been served that is not there: a first one meets no tombstone.

    `found` names the model that can take its place, as in "copy …".
    """
    from service.db.vault_keys import SLOTS

    if (settings.home / "keys" / SLOTS).exists():
        raise ConfigurationError(
            f"{settings.home} has served a model, and none is in {settings.model_dir}: it is in another folder, or it "
            "is lost.",
            f"Name the other folder by LETHE_MODEL. If it is lost, copy {found} to {settings.model_dir} and run "
            "`./lethe recover`, which deletes from it what was deleted before. It must have the lost one's name.",
        )
