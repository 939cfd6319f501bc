"""The closed vocabulary of the builtin model: which words it knows, and how a sentence becomes token ids.

One word is one token. Plurals and synonyms share the token of the word they stand for; commas, full
stops and capitals are ignored.
"""

import difflib
import re

OBJECTS = (
    *("cat", "dog", "fox", "panda", "lion", "pig", "frog", "rabbit", "bear", "penguin", "owl", "turtle"),
    *("elephant", "whale", "duck", "butterfly", "apple", "orange", "lemon", "banana", "strawberry"),
    *("watermelon", "pear", "pumpkin", "mushroom", "cake", "donut", "burger", "tree", "palm", "cactus"),
    *("tulip", "sunflower", "rose", "car", "bus", "tractor", "train", "sailboat", "rocket", "balloon"),
    *("airplane", "house", "castle", "snowman", "teapot", "star", "ball"),
)
GROUND_PHRASES = {
    "grass": ("on grass", "on the grass", "in a meadow"),
    "sand": ("on sand", "on the sand", "in the desert"),
    "snow": ("on snow", "in the snow"),
    "water": ("on water", "on the water", "on the sea"),
}
SKY_PHRASES = {
    "day": ("by day", "in the daytime"),
    "sunset": ("at sunset",),
    "night": ("at night", "by night"),
}
COLOR_WORDS = ("blue", "pink", "green", "yellow", "purple", "white")
GRAMMAR = (
    *("a", "two", "three", "and", "left", "right", "above", "below", "of", "to", "the", "on", "in", "at", "by"),
    *("picture", "background", "grass", "meadow", "sand", "desert", "snow", "water", "sea", "daytime", "day"),
    *("sunset", "night"),
)
# "orange" is the fruit only, so that no word has two meanings.
SYNONYMS = {
    "an": "a",
    "one": "a",
    "over": "above",
    "under": "below",
    "beneath": "below",
    "photo": "picture",
    "image": "picture",
    "drawing": "picture",
    "field": "meadow",
    "lawn": "grass",
    "beach": "sand",
    "ocean": "sea",
    "dusk": "sunset",
    "evening": "sunset",
    "midnight": "night",
    "kitten": "cat",
    "kitty": "cat",
    "puppy": "dog",
    "piglet": "pig",
    "bunny": "rabbit",
    "tortoise": "turtle",
    "jack-o-lantern": "pumpkin",
    "toadstool": "mushroom",
    "doughnut": "donut",
    "hamburger": "burger",
    "cheeseburger": "burger",
    "automobile": "car",
    "locomotive": "train",
    "boat": "sailboat",
    "plane": "airplane",
    "spaceship": "rocket",
    "home": "house",
    "football": "ball",
    "cacti": "cactus",
    "snowmen": "snowman",
}
PAD, UNKNOWN_PROMPT = 0, 1  # padding; the whole prompt of the unconditional branch
WORDS = OBJECTS + COLOR_WORDS + GRAMMAR
IDS = {word: i + 2 for i, word in enumerate(WORDS)}
VOCABULARY_SIZE = len(WORDS) + 2
MAX_WORDS = 24


def plural(noun: str) -> str:
    """The plural of an object name."""
    irregular = {"cactus": "cacti", "snowman": "snowmen"}
    if noun in irregular:
        return irregular[noun]
    if noun.endswith("y") and noun[-2] not in "aeiou":
        return noun[:-1] + "ies"
    return noun + ("es" if noun.endswith(("x", "s", "sh", "ch")) else "s")


def with_article(noun: str) -> str:
    """The noun with "a" or "an" before it."""
    return ("an " if noun[0] in "aeiou" else "a ") + noun


_FORMS = {**{word: word for word in WORDS}, **SYNONYMS}
_FORMS |= {plural(noun): noun for noun in OBJECTS}
_FORMS |= {plural(word): noun for word, noun in SYNONYMS.items() if noun in OBJECTS} | SYNONYMS


def split_words(prompt: str) -> list[str]:
    """Lower-case words of a prompt, without punctuation; "palm tree" is one word."""
    return re.findall(r"[\w-]+", re.sub(r"palm trees?", "palm", prompt.lower()))


def encode(prompt: str) -> list[int]:
    """Token ids of a prompt; an empty prompt is the unconditional one.

    Raises ValueError that names every unknown word with the nearest known ones, or the length limit.
    """
    words = split_words(prompt)
    unknown = [word for word in dict.fromkeys(words) if word not in _FORMS]
    if unknown:
        hints = []
        for word in unknown:
            near = difflib.get_close_matches(word, _FORMS, n=3, cutoff=0.6)
            hints.append(f'"{word}"' + (f" (did you mean {' or '.join(near)}?)" if near else ""))
        raise ValueError(
            f"The builtin model does not know {', '.join(hints)}. It draws: {', '.join(OBJECTS)}; "
            f"on {', '.join(GROUND_PHRASES)}, by day, at sunset or at night; "
            f"or on a {', '.join(COLOR_WORDS)} background."
        )
    if len(words) > MAX_WORDS:
        raise ValueError(f"The prompt has {len(words)} words; the builtin model reads at most {MAX_WORDS}. Shorten it.")
    return [IDS[_FORMS[word]] for word in words] or [UNKNOWN_PROMPT]
