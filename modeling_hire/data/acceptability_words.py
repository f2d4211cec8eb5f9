"""The words of the generated acceptability task (see `acceptability.py`), by class.

In the word lists "|" divides the words of both splits (left) from those that only validation sentences hold (right),
and "/" the forms of one word.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Words:
    """
    One class of words, each word a tuple of its forms.

    Args:
        common: words of both splits.
        held_out: words for the validation split only.

    Example:
        >>> (parse_words("smiles/smile | dances/dance") + parse_words("works/work | argues/argue")).held_out
        (('dances', 'dance'), ('argues', 'argue'))
    """

    common: tuple[tuple[str, ...], ...]
    held_out: tuple[tuple[str, ...], ...]

    def __add__(self, other: Words) -> Words:
        return Words(self.common + other.common, self.held_out + other.held_out)


def parse_words(text: str) -> Words:
    """
    Reads a word list.

    Args:
        text: words separated by commas, forms by "/", the two groups by one "|".

    Returns:
        The two groups, with as many forms a word as the text has.

    Raises:
        ValueError: there is not exactly one "|".

    Example:
        >>> parse_words("walk/walked, eat/ate | sing/sang")
        Words(common=(('walk', 'walked'), ('eat', 'ate')), held_out=(('sing', 'sang'),))
    """
    groups = text.split("|")
    if len(groups) != 2:
        raise ValueError(f"text={text!r}: must hold exactly one '|'")
    common, held_out = (tuple(tuple(word.strip().split("/")) for word in group.split(",")) for group in groups)
    return Words(common, held_out)


def parse_nouns(text: str) -> Words:
    """
    Reads a list of nouns and adds the regular plural to each one that names no other.

    Args:
        text: as for [`parse_words`]; "knife/knives" gives an irregular plural.

    Returns:
        The two groups of (singular, plural).

    Raises:
        ValueError: there is not exactly one "|".

    Example:
        >>> parse_nouns("key, box, man/men | lady").common
        (('key', 'keys'), ('box', 'boxes'), ('man', 'men'))
    """

    def with_plural(forms: tuple[str, ...]) -> tuple[str, ...]:
        if len(forms) == 2:
            return forms
        noun = forms[0]
        if noun.endswith("y") and noun[-2] not in "aeiou":
            return noun, noun[:-1] + "ies"
        return noun, noun + ("es" if noun.endswith(("s", "x", "ch", "sh")) else "s")

    words = parse_words(text)
    return Words(tuple(map(with_plural, words.common)), tuple(map(with_plural, words.held_out)))


MEN = parse_nouns(
    "boy, man/men, father, uncle, brother, king, prince, gentleman/gentlemen, grandfather, nephew "
    "| husband, monk, duke, son, stepfather"
)
WOMEN = parse_nouns(
    "girl, woman/women, mother, aunt, sister, queen, princess, lady, grandmother, niece "
    "| wife/wives, nun, duchess, daughter, stepmother"
)
PEOPLE = (
    MEN
    + WOMEN
    + parse_nouns(
        "teacher, doctor, lawyer, farmer, student, painter, driver, singer, writer, chef, pilot, nurse, banker, "
        "senator, tourist, gardener, baker, neighbor, manager, visitor "
        "| dentist, plumber, librarian, sailor, judge, soldier, secretary, coach, hunter, scientist"
    )
)
THINGS = parse_nouns(
    "key, cabinet, book, letter, picture, box, lamp, chair, bottle, basket, coat, ticket, map, knife/knives, table, "
    "bicycle, clock, mirror, camera, radio "
    "| ladder, suitcase, hammer, bench, guitar, blanket, statue, bucket, diary, shelf/shelves"
)
# Before a noun and after a verb stand different adjectives, so that no sentence says "the old key is old".
PERSON_ADJECTIVES = parse_words("young, old, tall, famous, rich, local, clever | elderly, foreign, wealthy")
THING_ADJECTIVES = parse_words("old, small, large, new, black, green | red, tiny, huge")
PERSON_STATES = parse_words("tired, happy, angry, busy, late, hungry | nervous, lonely, asleep")
THING_STATES = parse_words("dirty, broken, heavy, expensive, wet, clean | dusty, useless, sticky")

PLACES = parse_words("near, behind, beside, next to, in front of, across from | opposite, close to")
MANNERS = parse_words("often, quietly, every day, in the morning, at home | rarely, after dinner")
OPENERS = parse_words("in this town, at our school, in this country, in our family | in that village, at this office")

# Past tenses are the same for one and for many: between a subject and its verb they give no agreement away.
MET = parse_words(
    "admired, visited, met, helped, followed, thanked, praised, called | warned, greeted, hired, watched"
)
HURT = parse_words("hurt, blamed, saw, described, defended, trusted | injured, criticized, embarrassed, introduced")
GONE = parse_words("lied, complained, failed, resigned, apologized, won | cheated, protested, hesitated")
# No sentence without an object: base, past, participle, -ing.
TAKE = parse_words(
    "take/took/taken/taking, throw/threw/thrown/throwing, bring/brought/brought/bringing, "
    "hold/held/held/holding, carry/carried/carried/carrying, repair/repaired/repaired/repairing, "
    "borrow/borrowed/borrowed/borrowing, examine/examined/examined/examining, damage/damaged/damaged/damaging "
    "| lift/lifted/lifted/lifting, destroy/destroyed/destroyed/destroying, polish/polished/polished/polishing, "
    "wrap/wrapped/wrapped/wrapping"
)
# For one and for many.
SMILES = parse_words(
    "smiles/smile, laughs/laugh, works/work, sings/sing, complains/complain, travels/travel "
    "| dances/dance, whispers/whisper, argues/argue"
)
