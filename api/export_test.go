package api

import "mariposa/auth"

// Rule is one row of the rules, for the tests that walk them.
type Rule struct {
	Need     auth.Permission
	On       string // whose permission it is: project, task, instance, organization, volume, network; empty: nobody's
	Audit    string
	Variants map[string]auth.Permission
}

// Rules are the rules of all routes.
func Rules() map[string]Rule {
	names := map[target]string{nothing: "", aProject: "project", aTask: "task", anInstance: "instance", organization: "organization", aVolume: "volume", aNetwork: "network"}
	all := make(map[string]Rule, len(rules))
	for pattern, u := range rules {
		all[pattern] = Rule{Need: u.need, On: names[u.on], Audit: u.audit, Variants: u.variants}
	}
	return all
}

// Tokenless reports whether a path needs no token.
func Tokenless(path string) bool { return tokenless[path] }

// AgentPath is where agents connect.
const AgentPath = agentPath
