package cli

import "github.com/spf13/cobra"

// helpGroups are the groups of commands in the program's help, in order.
var helpGroups = []struct {
	id, title string
	commands  []string
}{
	{"projects", "Projects:", []string{"init", "validate", "project", "service", "meta", "version"}},
	{"watch", "Monitoring:", []string{"state", "ps", "logs", "top", "events", "queue", "open"}},
	{"resources", "Instances and resources:", []string{"instance", "volume", "network", "balancer", "names", "node", "package"}},
	{"people", "Users and access:", []string{"login", "logout", "whoami", "org", "user", "token", "key"}},
	{"run", "Run Mariposa:", []string{"dev", "server", "agent", "backup", "restore", "bench"}},
}

const rootExample = `  mariposa dev                                        run everything on this machine
  mariposa init                                       write a starter mariposa.yaml
  mariposa project create shop --wait                 create a project from ./mariposa.yaml
  mariposa project set shop                           make it the default project
  mariposa ps                                         list its instances
  mariposa logs web -f                                follow the logs of a service
  mariposa project scale web=5 --wait                 run five instances
  mariposa project revert --wait                      go back to the previous version`

// groupCommands assigns the commands of the program to groups.
func groupCommands(root *cobra.Command) {
	root.Example = rootExample
	for _, g := range helpGroups {
		some := false
		for _, c := range root.Commands() {
			for _, name := range g.commands {
				if c.Name() == name {
					c.GroupID, some = g.id, true
				}
			}
		}
		if some {
			root.AddGroup(&cobra.Group{ID: g.id, Title: g.title})
		}
	}
}
