package mariposa

// Ref is a reference to a field of another service: {{ .services.db.address }}
// is the address of db.
type Ref struct {
	Service string
	Field   string // id, address, port, ids, addresses, or environment.NAME
}

// Bindings are what the references of a service resolve to, by the name of the other
// service. They are shared and immutable.
type Bindings struct {
	To map[string]Binding `json:"to"`
}

// Binding is the instance of another service that a service is bound to: the first ready
// one when it was chosen. It is kept as long as the instance exists.
type Binding struct {
	Instance string `json:"instance"`
	Name     string `json:"name"`
	Node     string `json:"node"`
	Number   int    `json:"number"` // the version that the instance was created from
	// Values are what fields resolve to. For the environment it is a digest of the
	// value: the value itself may be secret and is resolved where it is used.
	Values map[string]string `json:"values"`
	Of     *Bindings         `json:"of,omitempty"` // what that instance is bound to itself, if its environment is referred to
}

// Get returns the binding to a service; false: not bound.
func (b *Bindings) Get(service string) (Binding, bool) {
	if b == nil {
		return Binding{}, false
	}
	to, ok := b.To[service]
	return to, ok
}

// Numbers lists the versions that the bindings need: those that the bound instances,
// direct or indirect, were created from.
func (b *Bindings) Numbers() (numbers []int) {
	if b == nil {
		return nil
	}
	for _, to := range b.To {
		numbers = append(append(numbers, to.Number), to.Of.Numbers()...)
	}
	return numbers
}
