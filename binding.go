package mariposa

// Ref is what a service refers to of another one: {{ .services.db.address }} is
// the address of db.
type Ref struct {
	Service string
	Field   string // id, address, port, ids, addresses, or environment.NAME
}

// Bindings are what the references of a service resolve to, by the name of the
// other service. They are shared and never changed once made.
type Bindings struct {
	To map[string]Binding `json:"to"`
}

// Binding is the instance of another service that a service is bound to: the
// first of those that served when it was chosen, and kept as long as it lives.
type Binding struct {
	Instance string `json:"instance"`
	Name     string `json:"name"`
	Node     string `json:"node"`
	Number   int    `json:"number"` // the version it was made from
	// Values are what fields resolve to. Of the environment it is a mark that
	// differs where the value does: the value itself may be secret, and is
	// resolved where it is used.
	Values map[string]string `json:"values"`
	Of     *Bindings         `json:"of,omitempty"` // what that instance is bound to itself, where its environment is asked for
}

// Get returns what a service is bound to; false: not bound.
func (b *Bindings) Get(service string) (Binding, bool) {
	if b == nil {
		return Binding{}, false
	}
	to, ok := b.To[service]
	return to, ok
}

// Numbers lists the versions that bindings need: those that what they are about,
// near or far, was made from.
func (b *Bindings) Numbers() (numbers []int) {
	if b == nil {
		return nil
	}
	for _, to := range b.To {
		numbers = append(append(numbers, to.Number), to.Of.Numbers()...)
	}
	return numbers
}
