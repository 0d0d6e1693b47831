"""How each kind of question may be put.

A line is `style | item | question`; the style decides how the answer is phrased, the item what a question of
presence or colour is about. Questions with "can you" or "do we" get style b, so that the style of an unseen
wording can be guessed. Held-out wordings are new sentences made of words that the training wordings use as well.
"""

from dataclasses import dataclass

from crossdraft.scenes.sentences import Style


@dataclass(frozen=True, slots=True)
class Wording:
    """One way to ask."""

    style: Style
    item: str
    question: str


_TRAIN = {
    "key elements": """
        a || What are the key elements in this scene?
        a || Name the key elements of this view.
        a || What are the most important things in this scene?
        a || List the important things ahead of us.
        b || Which key elements can you see in this clip?
        b || Can you list what is important here?
        b || Can you name the main things in view?
        """,
    "layout": """
        a || Describe the road layout.
        a || What is the layout of the road?
        a || What kind of road is this?
        a || How is the road laid out?
        b || Can you describe the road and its sides?
        b || What kind of road can you see in this clip?
        b || Can you tell me about the layout of the street?
        """,
    "ego motion": """
        a || How are we moving?
        a || Describe our own motion.
        a || What is our own vehicle doing?
        a || Are we moving, stopped or turning?
        b || Can you tell how we are moving?
        b || How fast do we move, and do we turn?
        b || Can you describe the motion of our vehicle?
        """,
    "lead motion": """
        a || What is the vehicle in front doing?
        a || What is the car in front doing?
        a || Describe the motion of the vehicle ahead.
        a || How is the vehicle ahead of us moving?
        b || Can you describe what the vehicle ahead does?
        b || Can you tell how the car in front is moving?
        b || What can you say about the motion of the vehicle in front?
        """,
    "watch for": """
        a || What should the driver watch for?
        a || What are the dangers in this scene?
        a || What should we watch out for here?
        a || Name the dangers ahead of us.
        b || Which dangers can you see?
        b || What do we have to watch for?
        b || Can you tell the driver what to watch out for?
        """,
    "conditions": """
        a || What are the weather and the time of day?
        a || Describe the weather.
        a || What is the weather like?
        a || What time of day is it?
        b || Can you describe the weather and the light of day?
        b || Which weather can you see in this clip?
        b || What weather do we have?
        """,
    "people": """
        a || What are the people doing?
        a || Describe the people in this scene.
        a || What are the people near the road doing?
        a || Who is near the road, and what are they doing?
        b || Can you describe the people?
        b || Which people can you see, and what are they doing?
        b || Can you tell what the people do?
        """,
    "cyclist": """
        a || What is the cyclist doing?
        a || Describe the cyclist.
        a || Where is the cyclist, and where are they going?
        a || Is anyone riding a bicycle, and where?
        b || Can you describe the cyclist?
        b || Can you tell me about anyone on a bicycle?
        b || What do we know about the cyclist?
        """,
    "count": """
        a || How many people are there?
        a || How many people are in this scene?
        a || What is the number of people near the road?
        a || Count the people.
        b || How many people can you see?
        b || Can you count the people?
        b || How many people do we see in this clip?
        """,
    "direction": """
        a || In which direction is everyone moving?
        a || Which way are the people and the cyclist moving?
        a || Describe the direction of everyone who moves.
        a || Who is moving to the left, and who to the right?
        b || Can you tell in which direction everyone moves?
        b || Which way do we all move?
        b || Can you say who moves which way?
        """,
    "order": """
        a || What is on the left, ahead and on the right?
        a || Describe the scene from the left to the right.
        a || What is on each side of us?
        a || Name what is on the left and on the right.
        b || What can you see on the left and on the right?
        b || Can you tell what is on each side?
        b || Can you go through the scene from left to right?
        """,
    "presence": """
        a | people | Are there any people in this scene?
        a | people | Is anyone on foot near the road?
        b | people | Can you see any people?
        a | cyclist | Is there a cyclist in this scene?
        a | cyclist | Is there anyone on a bicycle?
        b | cyclist | Can you see a cyclist?
        a | vehicle | Is there a parked or oncoming vehicle?
        a | vehicle | Is any other vehicle beside our lane?
        b | vehicle | Can you see a parked or oncoming vehicle?
        """,
    "colour": """
        a | lead | What colour is the vehicle ahead?
        a | lead | What is the colour of the car in front?
        a | lead | Name the colour of the vehicle in front of us.
        b | lead | Which colour can you see on the vehicle ahead?
        b | lead | Can you tell the colour of the vehicle in front?
        a | people | What colour are the coats of the people?
        a | people | Which colour are the people wearing?
        b | people | Can you tell the colour of the coats?
        """,
    "signals": """
        a || What do the traffic light and the sign show?
        a || Describe the traffic light and the signs.
        a || What colour is the traffic light, and which sign is there?
        a || Is there a traffic light or a sign?
        b || Which traffic light and sign can you see?
        b || Can you describe the traffic light and the sign?
        b || Can you see any signs or a traffic light?
        """,
    "action": """
        a || What should the driver do?
        a || What should we do now?
        a || What is the right thing to do here?
        a || How should the driver act in this scene?
        b || Can you tell the driver what to do?
        b || What do we have to do now?
        b || Can you say how the driver should act?
        """,
    "describe": """
        a || Describe the scene.
        a || Describe this clip in a few sentences.
        a || What is happening in this scene?
        a || What is going on here?
        b || Can you describe the scene?
        b || What can you see in this clip?
        b || Can you tell me what is going on?
        """,
}

_HELD_OUT = {
    "key elements": """
        a || What are the main elements of this clip?
        b || Can you name the most important elements ahead?
        """,
    "layout": """
        a || Describe what kind of street this is and its layout.
        b || Can you tell how the road is laid out?
        """,
    "ego motion": """
        a || What is the motion of our own vehicle like?
        b || Can you say how fast we are moving, and do we turn?
        """,
    "lead motion": """
        a || How is the car ahead moving?
        b || Can you say what the vehicle in front of us is doing?
        """,
    "watch for": """
        a || Which dangers should the driver watch out for?
        b || Can you name what we should watch for?
        """,
    "conditions": """
        a || Describe the weather and the time of day.
        b || Can you tell what the weather is like?
        """,
    "people": """
        a || Describe what the people are doing.
        b || Can you say what the people near the road are doing?
        """,
    "cyclist": """
        a || Where is the cyclist going?
        b || Can you tell what the cyclist is doing?
        """,
    "count": """
        a || Tell me the number of people in this scene.
        b || Can you tell how many people there are?
        """,
    "direction": """
        a || Which direction are the people and the cyclist going in?
        b || Can you describe which way everyone is moving?
        """,
    "order": """
        a || Name the things on each side of us, from left to right.
        b || Can you describe what is on the left and what is on the right?
        """,
    "presence": """
        a | people | Is there anyone near the road on foot?
        a | cyclist | Is anyone here on a bicycle?
        b | vehicle | Can you see any other vehicle, parked or oncoming?
        """,
    "colour": """
        a | lead | Which colour is the vehicle in front of us?
        b | people | Can you name the colour of the coats?
        """,
    "signals": """
        a || Which sign is there, and what does the traffic light show?
        b || Can you tell the colour of the traffic light and name the sign?
        """,
    "action": """
        a || How should we act now?
        b || Can you say what the driver should do here?
        """,
    "describe": """
        a || Tell me what is happening in this clip.
        b || Can you describe this scene in a few sentences?
        """,
}


def _parsed(text: str) -> tuple[Wording, ...]:
    parts = [[part.strip() for part in line.split("|")] for line in text.strip().splitlines()]
    return tuple(Wording("a" if style == "a" else "b", item, question) for style, item, question in parts)


TRAIN = {kind: _parsed(text) for kind, text in _TRAIN.items()}
HELD_OUT = {kind: _parsed(text) for kind, text in _HELD_OUT.items()}
