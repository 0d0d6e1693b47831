"""How each kind of question may be put.

A line is `style | item | question`; the style decides how the answer is phrased, the item what a question of
presence or colour is about. Questions with "can you", "could you", "would you" or "do we" get style b, so that the
style of an unseen wording can be guessed. Held-out wordings are sentences of their own: whoever wrote the bulk of the
training wordings had not read them, and what came too close to one of them was left out.
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
        a || List the most important things in this clip.
        a || Name the main objects a driver should note here.
        a || Which elements of this scene matter most?
        a || What are the most relevant items in view?
        a || Give me the key points of this video as a list.
        a || Identify the significant objects in this traffic scene.
        a || Please list the main elements of the clip.
        a || Tell me which things here are most important.
        a || I want to know the key elements of this view.
        a || Enumerate the important road users and objects here.
        a || What matters most in this picture?
        a || Which objects in the video are worth noting?
        a || Sum up the key items in a short list.
        a || What would a safety engineer list as the key elements?
        b || Could you list the main things in this scene?
        b || Would you name the key objects in the clip?
        b || Can you pick out the most important elements?
        b || Could you point out what matters most here?
        b || Can you give me a list of the important items?
        b || Which important things can you identify in this video?
        b || Would you list the most relevant road users and objects?
        b || What key elements do we have in this scene?
        b || Could you say which objects are the most significant?
        b || Can you name the main elements of the traffic situation?
        b || Which key items do we find in this clip?
        b || Would you enumerate the important parts of this view?
        """,
    "layout": """
        a || Describe the road layout.
        a || What is the layout of the road?
        a || What kind of road is this?
        a || How is the road laid out?
        b || Can you describe the road and its sides?
        b || What kind of road can you see in this clip?
        b || Can you tell me about the layout of the street?
        a || How many lanes are there, and what lies beside them?
        a || Tell me about the street and its edges.
        a || Explain how this road is laid out.
        a || Which type of road is shown in the clip?
        a || Give the number of lanes and what borders the road.
        a || What does the roadway look like on both sides?
        a || Please describe the lanes and the roadside.
        a || I want to know the road type and its lanes.
        a || Is there more than one lane, and what is alongside?
        a || What sort of street is it, and what lines it?
        a || Say what type of street we are driving along.
        a || Outline the road geometry, lanes and roadsides.
        a || How is the street arranged, lanes and verges included?
        b || Could you describe the street and its lanes?
        b || Would you tell me what type of road this is?
        b || Can you say how many lanes the road has?
        b || What kind of street do we drive on?
        b || Could you explain the layout of the street?
        b || Would you describe what borders the road on each side?
        b || What can you tell me about the lanes and roadsides?
        b || How many lanes do we have on this road?
        b || Could you sketch in words the road and its borders?
        b || Would you outline the lane layout for me?
        b || On what type of road do we travel here?
        b || Can you explain what the roadway and its edges look like?
        """,
    "ego motion": """
        a || How are we moving?
        a || Describe our own motion.
        a || What is our own vehicle doing?
        a || Are we moving, stopped or turning?
        b || Can you tell how we are moving?
        b || How fast do we move, and do we turn?
        b || Can you describe the motion of our vehicle?
        a || How fast is our car going?
        a || Is our own vehicle moving or standing still?
        a || Describe the motion of our own car.
        a || Tell me the speed and heading of our vehicle.
        a || What is the ego vehicle doing?
        a || Are we turning or going straight on?
        a || Explain how the camera car is moving.
        a || Give our speed and say whether we turn.
        a || Say whether our car is fast, slow or stopped.
        a || I want to know how our own automobile moves.
        a || Please report the movement of the ego car.
        a || Does our car stand still, or is it driving?
        a || At what pace is our vehicle travelling?
        a || Which way is our car steering, and how quickly?
        b || Could you describe our own motion?
        b || Would you say our car is moving or stationary?
        b || Can you tell how quickly our vehicle is travelling?
        b || Do we move, or are we at a standstill?
        b || Could you estimate how fast our car is going?
        b || Do we go straight or take a bend?
        b || Would you describe how the ego vehicle moves?
        b || Can you say whether our own car is turning?
        b || At what speed do we travel in this clip?
        b || Could you tell me if we are stopped or rolling?
        b || Do we drive slowly or quickly here?
        b || Would you report our own speed and turning?
        """,
    "lead motion": """
        a || What is the vehicle in front doing?
        a || What is the car in front doing?
        a || Describe the motion of the vehicle ahead.
        a || How is the vehicle ahead of us moving?
        b || Can you describe what the vehicle ahead does?
        b || Can you tell how the car in front is moving?
        b || What can you say about the motion of the vehicle in front?
        a || What does the vehicle before us do?
        a || Describe the motion of the lead vehicle.
        a || Is the car in front braking, stopped or driving on?
        a || Tell me what the lead car is doing.
        a || Explain the behaviour of the vehicle ahead.
        a || Does the automobile ahead of us slow down?
        a || Say how the vehicle in front behaves.
        a || Give the movement of the car in front of us.
        a || I want to know what the leading vehicle does.
        a || Please describe how the front vehicle is driving.
        a || Is the lead vehicle pulling away or getting closer?
        a || What manoeuvre is the car ahead making?
        a || How does the vehicle directly before us move?
        b || Could you describe the movement of the car ahead?
        b || Would you say what the lead car does?
        b || Can you tell how the vehicle in front moves?
        b || What motion can you see from the car ahead?
        b || Could you explain what the vehicle before us is doing?
        b || Would you tell me how the car in front behaves?
        b || Can you say whether the lead vehicle brakes or keeps going?
        b || What is the car that we follow doing, can you say?
        b || Could you tell me if the automobile ahead is stopping?
        b || Would you report on the motion of the leading vehicle?
        b || Can you explain how the front car is behaving?
        b || Could you say what the vehicle right ahead does?
        """,
    "watch for": """
        a || What should the driver watch for?
        a || What are the dangers in this scene?
        a || What should we watch out for here?
        a || Name the dangers ahead of us.
        b || Which dangers can you see?
        b || What do we have to watch for?
        b || Can you tell the driver what to watch out for?
        a || What hazards are there in this clip?
        a || Name the risks for the driver here.
        a || Which dangers does this street hold?
        a || What should the driver look out for?
        a || List any hazards in view.
        a || Tell me what could be dangerous here.
        a || Explain the risks in this traffic situation.
        a || Where does danger come from in this video?
        a || What must the driver be careful about?
        a || Is there anything hazardous the driver must watch?
        a || I want to know the potential hazards here.
        a || Please point out the risks in this scene.
        a || What threatens our safety in this clip?
        a || Who or what might put us at risk?
        b || Could you name the dangers in this view?
        b || Can you identify the hazards here?
        b || Would you list the risks the driver faces?
        b || What dangers do we face on this road?
        b || Which hazards do we need to be aware of?
        b || Could you tell me what to look out for?
        b || Would you point out anything dangerous in the clip?
        b || Can you explain what risks are present?
        b || What risks do we have to keep an eye on?
        b || Could you say what the driver must be wary of?
        b || Would you warn me about the hazards here?
        b || Of what dangers do we need to beware?
        """,
    "conditions": """
        a || What are the weather and the time of day?
        a || Describe the weather.
        a || What is the weather like?
        a || What time of day is it?
        b || Can you describe the weather and the light of day?
        b || Which weather can you see in this clip?
        b || What weather do we have?
        a || How is the weather in this clip?
        a || Is it day or night, and what is the weather?
        a || Tell me the time of day and the weather.
        a || What are the weather and light conditions?
        a || Give the weather conditions in this video.
        a || Is it raining, foggy, snowy or clear?
        a || Say what the weather is like here.
        a || What time of day is it in the scene?
        a || Which weather and daylight does the clip show?
        a || Please describe the weather and the hour of day.
        a || I want to know the weather during this drive.
        a || Does the scene take place by day or at night?
        a || Explain the environmental conditions, weather and daylight.
        a || What is the sky like, and how light is it?
        b || Could you describe the weather conditions?
        b || Would you say it is day or night here?
        b || Could you tell me the time of day?
        b || What weather conditions do we drive in?
        b || Can you report the weather and the lighting?
        b || Would you describe the weather and the daylight?
        b || In what weather do we travel here?
        b || At what time of day do we drive?
        b || Could you say whether it rains and how dark it is?
        b || Can you tell whether it is daytime or dark, wet or dry?
        b || Would you give the weather and time of day?
        """,
    "people": """
        a || What are the people doing?
        a || Describe the people in this scene.
        a || What are the people near the road doing?
        a || Who is near the road, and what are they doing?
        b || Can you describe the people?
        b || Which people can you see, and what are they doing?
        b || Can you tell what the people do?
        a || What are the pedestrians up to?
        a || Describe the people on foot.
        a || Where are the walkers, and what are they doing?
        a || Tell me about the pedestrians in this clip.
        a || Explain what the people on foot are doing.
        a || What do the pedestrians do in this video?
        a || Give details of the people walking here.
        a || Are the pedestrians walking, waiting or crossing?
        a || Say where the people are and what they do.
        a || I want to know what the walkers are doing.
        a || Please describe the pedestrians and their positions.
        a || How are the people on foot behaving?
        a || Who is on foot here, and what are they doing?
        a || Is anyone on foot crossing the street or waiting beside it?
        b || Could you describe the pedestrians?
        b || Can you tell me what the walkers are doing?
        b || Would you describe what the people on foot do?
        b || Could you say where the pedestrians are?
        b || Can you explain the behaviour of the pedestrians?
        b || Would you tell me about the people on foot?
        b || What can you say about the pedestrians here?
        b || Could you report what the people are doing and where?
        b || Would you say what the walkers are up to?
        b || Can you tell where the people stand or walk?
        b || Could you give an account of the pedestrians?
        b || What activity can you observe among the people on foot?
        """,
    "cyclist": """
        a || What is the cyclist doing?
        a || Describe the cyclist.
        a || Where is the cyclist, and where are they going?
        a || Is anyone riding a bicycle, and where?
        b || Can you describe the cyclist?
        b || Can you tell me about anyone on a bicycle?
        b || What do we know about the cyclist?
        a || Where is the bike rider heading?
        a || Tell me about the person on the bicycle.
        a || How does the cyclist move, and where?
        a || Explain what the rider on the bike does.
        a || Give the position and motion of the cyclist.
        a || Say where the cyclist is and where they go.
        a || Where is the bicycle, and where is it going?
        a || I want to know what the bike rider does.
        a || Please describe the bicycle rider.
        a || What does the person riding the bike do?
        a || Report on any cyclist in the clip.
        a || How is the bicycle rider behaving?
        a || If somebody is cycling, where are they and what are they doing?
        b || Could you describe the cyclist?
        b || Can you tell me what the bike rider does?
        b || Would you say where the cyclist is heading?
        b || Could you tell me about the bicycle and its rider?
        b || Would you describe the person on the bike?
        b || What can you say about the cyclist?
        b || Could you report where the bicycle rider is going?
        b || Would you tell me where the bike is and what it does?
        b || Can you describe how the cyclist is moving?
        b || Could you say what the person cycling is doing?
        b || Would you give details about the bike rider?
        """,
    "count": """
        a || How many people are there?
        a || How many people are in this scene?
        a || What is the number of people near the road?
        a || Count the people.
        b || How many people can you see?
        b || Can you count the people?
        b || How many people do we see in this clip?
        a || How many pedestrians are in the clip?
        a || Count the people on foot.
        a || What is the number of people here?
        a || Give the number of pedestrians.
        a || Tell me how many people are visible.
        a || How many walkers appear in this video?
        a || Say how many people are in view.
        a || Please count the pedestrians.
        a || I want to know the number of people in view.
        a || What is the total count of people on foot?
        a || How many persons does the scene show?
        a || Give me a head count of the pedestrians.
        a || How large is the group of people, in numbers?
        a || State the total number of walkers.
        b || Could you count the pedestrians?
        b || Would you count the people for me?
        b || How many people do we have in this scene?
        b || How many pedestrians can you see?
        b || Could you give the number of people on foot?
        b || Would you say how many walkers there are?
        b || Can you state the number of pedestrians?
        b || How many persons do we see before us?
        b || Could you tell me the number of people in the video?
        b || Would you give a head count of the people here?
        b || How many people on foot can you count?
        """,
    "direction": """
        a || In which direction is everyone moving?
        a || Which way are the people and the cyclist moving?
        a || Describe the direction of everyone who moves.
        a || Who is moving to the left, and who to the right?
        b || Can you tell in which direction everyone moves?
        b || Which way do we all move?
        b || Can you say who moves which way?
        a || In which direction do the pedestrians and the cyclist go?
        a || Tell me which way each person and rider is heading.
        a || Who is moving left, right or towards us?
        a || Which way do the people and the bike go?
        a || Say in what direction the walkers and cyclist move.
        a || Are the people and the rider going left or right?
        a || Give the direction of travel of pedestrians and cyclist.
        a || To which side are the pedestrians and bicycle moving?
        a || Explain who goes left and who goes right.
        a || I want to know the heading of walkers and cyclist.
        a || Please state the moving direction of people and bicycle.
        a || Does anyone on foot or bike come towards us?
        a || What are the headings of the pedestrians and the cyclist?
        a || Name the direction in which people and cyclist travel.
        b || Could you say which way the people and cyclist move?
        b || Can you tell the direction of the walkers and the bike?
        b || Would you tell me who moves left and who moves right?
        b || Could you give the heading of each pedestrian and rider?
        b || Can you state which direction the people and bike take?
        b || Would you say in which direction pedestrians and cyclist travel?
        b || Could you tell me which way everyone on foot or bike goes?
        b || Can you explain in what direction the people and rider move?
        b || Would you give the directions of the people and the cyclist?
        b || Who can you see moving left, right or towards us?
        b || Could you indicate which way the pedestrians and cyclist are headed?
        b || Would you indicate the direction of walkers and bicycle rider?
        """,
    "order": """
        a || What is on the left, ahead and on the right?
        a || Describe the scene from the left to the right.
        a || What is on each side of us?
        a || Name what is on the left and on the right.
        b || What can you see on the left and on the right?
        b || Can you tell what is on each side?
        b || Can you go through the scene from left to right?
        a || Tell me what is left, ahead and right of us.
        a || List what is there from left to right.
        a || What lies to our left, in front and to our right?
        a || Go from left to right and name everything.
        a || Which things are left, centre and right in the view?
        a || Describe the left, the middle and the right.
        a || Say what stands on each side and in front.
        a || Give the scene in order from left to right.
        a || Name what is on the left, then ahead, then right.
        a || Where is everything: left, straight ahead or right?
        a || I want to know what is left, before us and right.
        a || Please list the objects from the left to the right.
        a || What is located left of us, ahead and right of us?
        a || Scan the picture left to right and report what appears.
        b || Could you name what is left, ahead and right?
        b || Can you list everything from left to right?
        b || Would you say what is on each side and ahead?
        b || What do we have left, ahead and right of us?
        b || Could you describe the view from left to right?
        b || Would you go from left to right and list things?
        b || Can you tell what stands left, in front and right?
        b || What can you find on the left, ahead and right?
        b || Could you tell me what is left, centre and right?
        b || Would you describe the left side, the front and the right side?
        b || What do we pass on the left and right, and what is ahead?
        b || Can you order the things in view from left to right?
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
        a | people | Is anyone on foot in this clip?
        a | people | Are any pedestrians visible here?
        a | people | Does the video show any people on foot?
        a | people | Tell me whether there are pedestrians in the scene.
        a | people | Say if any walkers are in view.
        a | people | I want to know if there is anybody on foot.
        b | people | Could you say if there are any pedestrians?
        b | people | Can you spot anyone on foot?
        b | people | Do we have any pedestrians in view?
        b | people | Would you check whether any people are there?
        b | people | Can you tell whether anybody is walking here?
        b | people | Could you tell me if people are present?
        a | cyclist | Is anyone riding a bike in this clip?
        a | cyclist | Is a bicycle rider visible here?
        a | cyclist | Does the video show a cyclist?
        a | cyclist | Tell me whether there is a bicycle in the scene.
        a | cyclist | Say if a bike rider is in view.
        a | cyclist | Is somebody cycling on this street?
        b | cyclist | Could you say if there is a cyclist?
        b | cyclist | Can you spot a bike rider?
        b | cyclist | Do we have a cyclist in view?
        b | cyclist | Would you check whether there is a bicycle?
        b | cyclist | Can you tell whether someone is cycling here?
        b | cyclist | Could you tell me if a bicycle rider is present?
        a | vehicle | Is any other car parked or coming towards us?
        a | vehicle | Are there parked or oncoming cars besides the lead vehicle?
        a | vehicle | Does the clip show a parked or oncoming vehicle?
        a | vehicle | Tell me whether a vehicle is parked or oncoming.
        a | vehicle | Say if there is an oncoming or parked car.
        a | vehicle | Besides the car ahead, is another vehicle parked or approaching?
        b | vehicle | Could you say if any vehicle is parked or oncoming?
        b | vehicle | Can you spot a parked or oncoming car?
        b | vehicle | Do we meet a parked or oncoming vehicle here?
        b | vehicle | Would you check for a parked or oncoming car?
        b | vehicle | Can you tell whether another car is parked or approaching?
        b | vehicle | Could you tell me if an oncoming or parked automobile is present?
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
        a | lead | Which colour does the lead vehicle have?
        a | lead | Tell me the colour of the vehicle ahead.
        a | lead | Name the colour of the car before us.
        a | lead | Give the colour of the lead car.
        a | lead | Say what colour the automobile in front is.
        a | lead | I want to know the colour of the car ahead.
        a | lead | Please state the paint colour of the vehicle in front.
        a | lead | In what colour is the leading vehicle painted?
        b | lead | Could you tell the colour of the car ahead?
        b | lead | Can you name the colour of the vehicle in front?
        b | lead | Would you say what colour the lead car is?
        b | lead | Could you give the colour of the vehicle before us?
        b | lead | Can you say which colour the front car has?
        b | lead | What colour do we see on the vehicle in front?
        b | lead | Would you tell me the paint colour of the leading car?
        a | people | What is the colour of the pedestrians' coats?
        a | people | Which colour are the people's coats?
        a | people | Tell me the colour of the coats people wear.
        a | people | Name the coat colour of the people on foot.
        a | people | Give the colours of the coats on the pedestrians.
        a | people | Say what colour coats the walkers are wearing.
        a | people | I want to know the colour of their coats.
        a | people | Please state the coat colour of each pedestrian.
        a | people | In what colour are the coats of the walkers?
        b | people | Could you tell the colour of the people's coats?
        b | people | Would you say what colour the coats are?
        b | people | Could you give the coat colours of the people?
        b | people | Can you say which colour of coat each person wears?
        b | people | What coat colours can you see on the walkers?
        b | people | Would you tell me what colour coats the pedestrians have?
        """,
    "signals": """
        a || What do the traffic light and the sign show?
        a || Describe the traffic light and the signs.
        a || What colour is the traffic light, and which sign is there?
        a || Is there a traffic light or a sign?
        b || Which traffic light and sign can you see?
        b || Can you describe the traffic light and the sign?
        b || Can you see any signs or a traffic light?
        a || What does the traffic light show?
        a || Is there a traffic light or a sign, and what does it show?
        a || Tell me the state of the light and the sign.
        a || Which sign and which light are shown?
        a || Read the traffic signs and signals.
        a || Say what the traffic sign and the signal indicate.
        a || Give the traffic light colour and the sign.
        a || What do the signals and signs say?
        a || I want to know what the light and sign show.
        a || Please report any traffic light and road sign.
        a || Is the light red or green, and what sign stands here?
        a || Explain what the road sign and the traffic light mean.
        a || Which traffic signals and road signs are in the scene?
        a || Does the clip show a traffic light or a road sign?
        b || Could you read the traffic light and the sign?
        b || Can you tell what the signal and the sign show?
        b || Would you say what the traffic light indicates?
        b || Which traffic signs and lights do we have here?
        b || Could you tell me about any road signs or signals?
        b || Can you report the state of the traffic light and sign?
        b || Would you name the sign and the light's colour?
        b || What do we read on the sign and the traffic light?
        b || Could you say what colour the light is and which sign appears?
        b || Would you describe the traffic light and the road sign?
        b || What traffic signals or signs can you make out?
        b || Can you explain what the light and sign tell us?
        """,
    "action": """
        a || What should the driver do?
        a || What should we do now?
        a || What is the right thing to do here?
        a || How should the driver act in this scene?
        b || Can you tell the driver what to do?
        b || What do we have to do now?
        b || Can you say how the driver should act?
        a || How should the driver react?
        a || Tell me the right action for the driver.
        a || What is the correct thing to do here?
        a || Say what our driver ought to do next.
        a || Which action should the driver take now?
        a || Should the driver brake, wait or carry on?
        a || Give the driver an instruction for this situation.
        a || I want to know what to do at this moment.
        a || Please advise the driver on the next step.
        a || What manoeuvre is advisable for us now?
        a || How ought our car to respond here?
        a || Explain how the driver should act now.
        a || Recommend an action to the driver.
        b || Could you tell the driver what to do?
        b || Can you say how the driver should react?
        b || Would you advise the driver what to do now?
        b || Do we need to brake, stop or keep going?
        b || What action do we need to take?
        b || Could you recommend what we should do next?
        b || Can you suggest the right action for our driver?
        b || How do we have to respond now?
        b || Would you say we should stop, slow or continue?
        b || Could you explain what the driver ought to do?
        b || Do we have to slow down, or may we drive on?
        b || Would you tell me the safest action right now?
        """,
    "describe": """
        a || Describe the scene.
        a || Describe this clip in a few sentences.
        a || What is happening in this scene?
        a || What is going on here?
        b || Can you describe the scene?
        b || What can you see in this clip?
        b || Can you tell me what is going on?
        a || Describe this driving clip.
        a || What is shown in the video?
        a || Give a full description of the clip.
        a || Explain what is going on in this video.
        a || What does this scene look like overall?
        a || Please describe the whole picture.
        a || Summarise the traffic scene in a few sentences.
        a || I want to know everything this clip shows.
        a || Say what happens in the clip.
        a || Give an overview of the entire scene.
        a || What is going on around us here?
        a || How would a driver describe this whole scene?
        a || Write a caption for this driving video.
        b || Could you describe the whole scene?
        b || Can you tell me what happens in this clip?
        b || Would you describe the video for me?
        b || What do we see in this video?
        b || Could you give an overview of the scene?
        b || Can you summarise the clip?
        b || Would you explain what this video shows?
        b || Could you put the whole scene into words?
        b || Can you give a complete description of the view?
        b || Would you sum up the entire situation shown here?
        b || Could you tell me all that is happening here?
        b || Would you write a full description of this clip?
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
