"""A scene's ground truth as flat categories, and as facts that a sentence can state."""

from crossdraft.scenes.scene import Scene

ATTRIBUTES: dict[str, tuple[str, ...]] = {
    "layout": LAYOUTS,
    "ego": EGO,
    "lead.type": ("none", *VEHICLES),
    "lead.colour": ("none", *COLOURS),
    "lead.motion": ("none", *LEAD_MOTIONS),
    "left": STATIONS,
    "right": STATIONS,
    "people.count": ("0", "1", "2", "3"),
    "people.action": ("none", *PEOPLE_ACTIONS),
    "people.colour": ("none", *COLOURS),
    "cyclist": ("none", *CYCLIST),
    "light": LIGHTS,
    "light.side": ("none", "left", "right"),
    "sign": SIGNS,
    "weather": WEATHERS,
    "time": TIMES,
    "side": SIDES,
    "driver": ("stop", "brake", "give way", "slow down", "keep going"),
}


def driver_action(scene: Scene) -> tuple[str, str]:
    """What the driver should do, and the attribute that is the reason ("none": nothing is in the way)."""
    rules = (
        (scene.light == "red", "stop", "light"),
        (scene.lead_motion == "closer", "brake", "lead.motion"),
        (scene.people_action in ("to the left", "to the right"), "give way", "people.action"),
        (scene.sign == "stop", "stop", "sign"),
        (scene.light == "yellow", "slow down", "light"),
        (scene.sign == "yield", "give way", "sign"),
        (scene.weather == "fog", "slow down", "weather"),
    )
    return next(((action, reason) for holds, action, reason in rules if holds), ("keep going", "none"))


def attributes(scene: Scene) -> dict[str, str]:
    """The categories of a scene, one value of `ATTRIBUTES` each; 'none' where there is nothing."""
    return {
        "layout": scene.layout,
        "ego": scene.ego,
        "lead.type": scene.lead,
        "lead.colour": scene.lead_colour,
        "lead.motion": scene.lead_motion,
        "left": scene.left,
        "right": scene.right,
        "people.count": str(scene.people),
        "people.action": scene.people_action,
        "people.colour": scene.people_colour,
        "cyclist": scene.cyclist,
        "light": scene.light,
        "light.side": scene.light_side if scene.light != "none" else "none",
        "sign": scene.sign,
        "weather": scene.weather,
        "time": scene.time,
        "side": scene.side,
        "driver": driver_action(scene)[0],
    }
