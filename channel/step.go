package channel

// Step is an access of a publisher or a reader to shared memory. Tests stop,
// interleave and kill at each of them (build tag steps); in a normal build a step is
// the access and nothing else.
type Step int

// The steps of Publish, of Claim and of Read, in the order of the code.
const (
	StepInvalidate Step = iota // publish: the scratch message loses its queue index
	StepSum                    // its checksum is written
	StepBody                   // a word of it is written
	StepWord                   // the word is loaded
	StepSlot                   // the slot is loaded
	StepHelp                   // the word is moved on for another publisher
	StepReplaced               // what the slot is to lose is noted in the line
	StepIndex                  // the scratch message gets its queue index
	StepLine                   // the line of the message that is to go is loaded
	StepNote                   // a line's note of what it replaces is loaded
	StepPublish                // the slot names the message: readers can see it
	StepMove                   // the word is moved on
	StepScratch                // the line has a new scratch message
	StepDone                   // nothing is under way any more
	StepOwner                  // claim: the line has a new owner
	StepReadSlot               // read: the slot is loaded
	StepReadBody               // a word of the message is loaded, its queue index first
	StepReadAgain              // its queue index is loaded again
)
