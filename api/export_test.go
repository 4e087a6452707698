package api

import (
	"cmp"
	"slices"
	"strings"

	"mariposa/auth"
)

// Route is one row of the table of routes, for the tests that walk it.
type Route struct {
	Method, Path, ID string
	Callers          string // users, agents, replicas or anybody
	Permission       auth.Permission
	On               string // what the permission is asked on; empty: nothing
	Variants         map[string]auth.Permission
	Audit            string
	Text             bool // its body need not be JSON
}

func (r Route) String() string { return r.Method + " " + r.Path }

// Routes are all routes, by path and method.
func Routes() []Route {
	var all []Route
	for _, t := range topics {
		for _, rt := range t.routes {
			r := Route{ID: rt.id, Permission: rt.permission, Audit: rt.audit, Text: rt.body.text}
			r.Method, r.Path, _ = strings.Cut(rt.pattern, " ")
			r.Callers = map[callers]string{users: "users", agents: "agents", replicas: "replicas", anybody: "anybody"}[rt.admitted]
			if rt.object != nil {
				r.On = rt.object.name
			}
			if rt.variation != nil {
				r.Variants = rt.variation.permissions
			}
			all = append(all, r)
		}
	}
	slices.SortFunc(all, func(a, b Route) int { return cmp.Or(cmp.Compare(a.Path, b.Path), cmp.Compare(a.Method, b.Method)) })
	return all
}

// UserRoutes are the routes that users call with a token.
func UserRoutes() []Route {
	return slices.DeleteFunc(Routes(), func(r Route) bool { return r.Callers != "users" })
}
