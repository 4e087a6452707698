package manifest

import (
	"strconv"
	"strings"

	"mariposa"
)

// names reads a list of distinct texts that each satisfy a check.
func (c *checker) names(at *spot, of string, check func(string) string) []string {
	var names []string
	for _, item := range c.distinct(at, of, check) {
		names = append(names, item.node.Value)
	}
	return names
}

// distinct returns the spots of a list's texts, without faulty ones and
// duplicates.
func (c *checker) distinct(at *spot, of string, check func(string) string) []*spot {
	var good []*spot
	seen := map[string]bool{}
	for _, item := range c.items(at, of) {
		text, ok := c.text(item)
		if !ok {
			continue
		}
		if check != nil {
			if why := check(text); why != "" {
				c.invalid(item, "%s", why)
				continue
			}
		}
		if seen[text] {
			c.fault(item, mariposa.FaultDuplicate, "%s is listed twice; remove one", quoteText(text))
			continue
		}
		seen[text] = true
		good = append(good, item)
	}
	return good
}

// readWords reads a command: a list of words, or a text that is split into them.
func (c *checker) readWords(at *spot, d *draft) []string {
	if at.kind() == kindList {
		var words []string
		for _, item := range c.items(at, "words") {
			if word, ok := c.text(item); ok {
				c.template(item, d, word)
				words = append(words, word)
			}
		}
		return c.someWords(at, words)
	}
	if at.kind() != kindText {
		c.wrongType(at, "a string or a list of words")
		return nil
	}
	words, err := splitWords(at.node.Value)
	if err != nil {
		c.invalid(at, "%v; fix it, or write the command as a list of words", err)
		return nil
	}
	for _, word := range words {
		c.template(at, d, word)
	}
	return c.someWords(at, words)
}

func (c *checker) someWords(at *spot, words []string) []string {
	if len(words) == 0 || words[0] == "" {
		c.invalid(at, "must name a program; omit the key if there is none")
	}
	return words
}

// pairRules says how pairs of names and values may be written.
type pairRules struct {
	list bool // also as a list of NAME=VALUE
	name func(string) string
}

// pairs reads names with values in the order of the manifest.
func (c *checker) pairs(at *spot, d *draft, rules pairRules) []mariposa.Variable {
	var pairs []mariposa.Variable
	add := func(at *spot, name, value string) {
		if why := rules.name(name); why != "" {
			c.invalid(at, "%s", why)
			return
		}
		c.template(at, d, value)
		pairs = append(pairs, mariposa.Variable{Name: name, Value: value})
	}
	if rules.list && at.kind() == kindList {
		c.listedPairs(at, add)
		return pairs
	}
	if at.kind() != kindMap {
		c.wrongType(at, map[bool]string{true: "a mapping or a list of NAME=VALUE", false: "a mapping"}[rules.list])
		return nil
	}
	c.entries(at, func(at *spot) {
		if at.kind() == kindNull {
			add(at, at.key, "")
		} else if value, ok := c.text(at); ok {
			add(at, at.key, value)
		}
	})
	return pairs
}

func (c *checker) listedPairs(at *spot, add func(at *spot, name, value string)) {
	lines := map[string]int{}
	for _, item := range c.items(at, "NAME=VALUE") {
		text, ok := c.text(item)
		if !ok {
			continue
		}
		name, value, found := strings.Cut(text, "=")
		if !found {
			c.invalid(item, "must be NAME=VALUE; write NAME= for an empty value")
			continue
		}
		if line, twice := lines[name]; twice {
			c.fault(item, mariposa.FaultDuplicate, "sets %s twice, first on line %d; remove one", quoteText(name), line)
			continue
		}
		lines[name] = item.line
		add(item, name, value)
	}
}

func affinity(c *checker, at *spot, d *draft) {
	d.Affinity = c.names(at, "rules like role!=~front", func(rule string) string {
		subject, object, equal := strings.Cut(rule, "==")
		if !equal {
			subject, object, equal = strings.Cut(rule, "!=")
		}
		if !equal || variableName(subject) != "" || strings.TrimPrefix(object, "~") == "" {
			return "must be a rule like container!=web*, role==front or rack!=~web, where ~ marks a preference"
		}
		return ""
	})
}

func ports(c *checker, at *spot, d *draft) {
	targets, hosts := map[int]bool{}, map[int]bool{}
	for _, item := range c.items(at, "ports") {
		port, ok := parsePort(item)
		switch {
		case item.kind() == kindRefused:
		case !ok:
			c.invalid(item, "must be a port from 1 to 65535, or \"host:target\" like \"443:8443\"")
		case targets[port.Target]:
			c.fault(item, mariposa.FaultDuplicate, "port %d is listed twice; remove one", port.Target)
		case port.Host > 0 && hosts[port.Host]:
			c.fault(item, mariposa.FaultDuplicate, "host port %d is already used by another port of this service", port.Host)
		default:
			targets[port.Target], hosts[port.Host] = true, true
			d.Ports = append(d.Ports, port)
		}
	}
}

func parsePort(at *spot) (port mariposa.Port, ok bool) {
	if k := at.kind(); k != kindInt && k != kindText {
		return port, false
	}
	host, target, both := strings.Cut(at.node.Value, ":")
	if !both {
		host, target = "", host
	}
	if both {
		if port.Host, ok = portNumber(host); !ok {
			return port, false
		}
	}
	port.Target, ok = portNumber(target)
	return port, ok
}

func portNumber(s string) (int, bool) {
	n, err := strconv.ParseUint(s, 10, 16)
	return int(n), err == nil && n > 0
}
