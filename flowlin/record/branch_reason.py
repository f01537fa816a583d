"""Why a walk notes a branch: from there on its flow is one of several, or may be."""

# What a branch's entry of the log has as its new side. Files of older versions have 1 throughout.
STARTS_EITHER_WAY, REVIVES, CROSSES, LEAVES_SLIDE, UNDECIDED_DESCENT = 2, 3, 4, 5, 6
SLIDE_TURNS, COARSE_DESCENT, MEETS = 7, 8, 9
REASONS = {
    STARTS_EITHER_WAY: "the pair starts on its kink, and may leave it to either side",
    REVIVES: "the kink on which a dead unit rests turns to repel it",
    CROSSES: "more kinks of the unit meet than it has inputs, and some of them repel",
    LEAVES_SLIDE: "the pair leaves its slide to on, and the loss nearby may not be convex",
    SLIDE_TURNS: "the kink on which the pair slides turns to repel it",
    COARSE_DESCENT: "descent through the point does not tell all of how pairs leave it",
    MEETS: "kinks of the unit are met at once, and a start beside may go another way",
    UNDECIDED_DESCENT: "small steps of descent leave the point in more than one way",
}
