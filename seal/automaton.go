package seal

import (
	"maps"
	"slices"
)

// automaton finds words in a text, all of them in one pass (Aho and Corasick, 1975). A
// state is the longest suffix of the input that is a prefix of a word. Most of a long
// word is a chain of states with one successor each, and such a successor has the next
// number, so a state takes only six bytes.
type automaton struct {
	first  [256]int32 // successors of state 0, the empty prefix
	char   []byte     // the byte that led to a state
	signs  []byte     // flags: chained, branched, matching
	fall   []int32    // the state to continue from when no successor fits
	branch map[fork]int32
	match  map[int32]int32 // the length of the longest word that ends in a state
	chains []chain         // in the order of their states
}

type fork struct {
	state int32
	char  byte
}

// chain is a run of successive states, up to the next chain's first one.
type chain struct{ state, depth int32 }

const (
	chained  = 1 << iota // the next state is a successor
	branched             // there are successors in branch
	matching             // the state is in match
)

// newAutomaton returns an automaton that finds words, none of which may be empty.
func newAutomaton(words map[string]struct{}) *automaton {
	sorted := slices.Sorted(maps.Keys(words))
	states := 1
	for i, w := range sorted {
		states += len(w)
		if i > 0 {
			states -= shared(sorted[i-1], w)
		}
	}
	a := &automaton{
		char:   make([]byte, 1, states),
		signs:  make([]byte, 1, states),
		branch: map[fork]int32{},
		match:  map[int32]int32{},
		chains: []chain{{0, 0}},
	}
	for _, w := range sorted {
		a.add(w)
	}
	a.fall = make([]int32, len(a.char))
	a.link()
	return a
}

// shared returns the length of the common prefix of two words.
func shared(a, b string) int {
	n := 0
	for n < min(len(a), len(b)) && a[n] == b[n] {
		n++
	}
	return n
}

func (a *automaton) add(word string) {
	state := int32(0)
	for i := range len(word) {
		next := a.follower(state, word[i])
		if next == 0 {
			next = a.grow(state, int32(i), word[i])
		}
		state = next
	}
	a.end(state, int32(len(word)))
}

// grow adds a successor to a state at a depth.
func (a *automaton) grow(state, depth int32, char byte) int32 {
	next := int32(len(a.char))
	a.char = append(a.char, char)
	a.signs = append(a.signs, 0)
	if state != 0 && next == state+1 {
		a.signs[state] |= chained
		return next
	}
	if state == 0 {
		a.first[char] = next
	} else {
		a.signs[state] |= branched
		a.branch[fork{state, char}] = next
	}
	a.chains = append(a.chains, chain{next, depth + 1})
	return next
}

func (a *automaton) end(state, length int32) {
	a.signs[state] |= matching
	a.match[state] = length
}

// follower returns the state after one more byte of the same word; 0 if there is none.
func (a *automaton) follower(state int32, char byte) int32 {
	if state == 0 {
		return a.first[char]
	}
	signs := a.signs[state]
	if signs&chained != 0 && a.char[state+1] == char {
		return state + 1
	}
	if signs&branched != 0 {
		return a.branch[fork{state, char}]
	}
	return 0
}

// step returns the state after one more byte of the text.
func (a *automaton) step(state int32, char byte) int32 {
	for {
		if next := a.follower(state, char); next != 0 || state == 0 {
			return next
		}
		state = a.fall[state]
	}
}

// found returns the length of the longest word that ends in a state.
func (a *automaton) found(state int32) int32 {
	if a.signs[state]&matching == 0 {
		return 0
	}
	return a.match[state]
}

// prefixLength returns how many of the last bytes may be the prefix of a longer word.
func (a *automaton) prefixLength(state int32) int {
	if a.signs[state]&(chained|branched) == 0 {
		state = a.fall[state]
	}
	i, exact := slices.BinarySearchFunc(a.chains, state, func(c chain, s int32) int { return int(c.state) - int(s) })
	if !exact {
		i--
	}
	return int(a.chains[i].depth + state - a.chains[i].state)
}

// link sets the fall of each state, in order of length: the fall of a state is shorter
// than the state, so it is known by then.
func (a *automaton) link() {
	forks := map[int32][]int32{}
	for f, next := range a.branch {
		forks[f.state] = append(forks[f.state], next)
	}
	var level, deeper []int32
	for _, state := range a.first {
		if state != 0 {
			level = append(level, state)
		}
	}
	for len(level) > 0 {
		deeper = deeper[:0]
		for _, state := range level {
			from := len(deeper)
			deeper = append(deeper, forks[state]...)
			if a.signs[state]&chained != 0 {
				deeper = append(deeper, state+1)
			}
			for _, next := range deeper[from:] {
				a.land(next, a.step(a.fall[state], a.char[next]))
			}
		}
		level, deeper = deeper, level
	}
}

// land sets the fall of a state: words that end there end here too. It skips a fall
// without successors, which cannot continue a word.
func (a *automaton) land(state, fall int32) {
	if n := a.found(fall); n > 0 && a.found(state) == 0 {
		a.end(state, n)
	}
	if a.signs[fall]&(chained|branched) == 0 {
		fall = a.fall[fall]
	}
	a.fall[state] = fall
}

// anyIn reports whether a text contains any word.
func (a *automaton) anyIn(text string) bool {
	state := int32(0)
	for i := range len(text) {
		if state = a.step(state, text[i]); a.signs[state]&matching != 0 {
			return true
		}
	}
	return false
}
