// Made of sdk/openapi.json by `npm run generate`: do not edit.

export interface paths {
    "/metrics": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /** Everything counted so far, and how things stand, for Prometheus. */
        get: operations["render"];
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/openapi.json": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /** This description. */
        get: operations["openapi"];
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/doctor": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /** Find what crashes left behind, and what the host lacks. */
        get: operations["examine"];
        put?: never;
        /** Find what crashes left behind, and remove it. */
        post: operations["repair"];
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/events": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /**
         * Events of this host, as they happen.
         * @description Server-sent events: `id` is the position in the stream, `data` the event as JSON. A client
         *     that names the last `id` it has read, by `since` or by the header `Last-Event-ID`, goes on
         *     after it. If events after it are gone, an event `lagged` comes first and says how many; a
         *     restart of the daemon begins a new stream, and then the number is not known. A comment with
         *     the present `id` is sent every 15 seconds at the latest.
         */
        get: operations["events"];
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/friendly/police": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /** Show the police of this host's VMs: those that it named, and those that it has capped. */
        get: operations["police"];
        /**
         * Have this host's VMs policed: those that have more than a fair share of its CPUs while others
         *     wait, and do not yield, are named, and capped if they are to be. Done again with the same
         *     settings, it goes on for the time that they say, if it would not go on longer. Where VMs are scheduled already, none can be
         *     capped (409).
         */
        put: operations["begin_police"];
        post?: never;
        /** End it. All VMs that it capped are let go. */
        delete: operations["end_police"];
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/hosts": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /**
         * List the other hosts that VMs can be forked and moved to, by the names that they have here: nodes of the
         *     cluster that are not lost, or peers.
         */
        get: operations["hosts"];
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/images": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /** List the recipes of guest images, which are built, and those imported. */
        get: operations["images"];
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/images/{name}": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /** One guest image. */
        get: operations["image"];
        /**
         * Import an image: the body is a disk, or an archive of a container image.
         *     If the client goes away before the answer there is no image.
         */
        put: operations["import_image"];
        /** Build a guest image now rather than at the first boot from it. */
        post: operations["build_image"];
        /**
         * Remove a guest image, unless a VM uses it. One from a recipe can be built
         *     again; one that was imported is gone.
         */
        delete: operations["remove_image"];
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/images/{name}/build": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        get?: never;
        /**
         * Build a guest image from a Dockerfile: the body is a tar archive of the context. Steps run on the
         *     host, in a user namespace of their own and on its network: for the host's root alone, not for
         *     requests over the network. If the client goes away before the answer there is no image.
         */
        put: operations["build_from"];
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/images/{name}/commit": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        get?: never;
        put?: never;
        /**
         * Make an image of a VM's disk. One that runs goes on; host keys, machine-id, logs and the like
         *     are not in the image. What has begun goes on if the client goes away.
         */
        post: operations["commit_image"];
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/images/{name}/disk": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /** The disk of an image that is built or imported. */
        get: operations["export_image"];
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/images/{name}/pull": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        get?: never;
        put?: never;
        /**
         * Fetch a container image from its registry and make a guest image of it. If the client goes
         *     away before the answer there is no image. Registries of the host itself are asked for its root
         *     alone, not for requests over the network.
         */
        post: operations["pull_image"];
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/join": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        get?: never;
        put?: never;
        /** Let in a host that was invited: it comes without a token. */
        post: operations["join"];
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/links": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /** List the links to other hosts that have a budget, or by which blocks of volumes were sent today. */
        get: operations["list_links"];
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/links/{host}/budget": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        get?: never;
        /** Change the budget of the link to a host, for blocks of volumes that nothing waits for. From now on. */
        put: operations["set_link_budget"];
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/nodes": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /** List the nodes of the cluster, by name. */
        get: operations["list_nodes"];
        put?: never;
        /** Invite a host to become a node. Not over the network. */
        post: operations["invite"];
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/nodes/{node}": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        get?: never;
        put?: never;
        post?: never;
        /** Remove a node for good. Its VMs are forgotten. */
        delete: operations["remove_node"];
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/nodes/{node}/activate": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        get?: never;
        put?: never;
        /** Have a node take new work again. */
        post: operations["activate"];
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/nodes/{node}/drain": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        get?: never;
        put?: never;
        /** Have a node take nothing new; what runs on it runs on. */
        post: operations["drain"];
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/pages": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /** The page images that memories of clones are views of. */
        get: operations["pages"];
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/peer/activations": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        get?: never;
        put?: never;
        /**
         * Make VMs of a substrate of another host. Their pages are fetched from there. At most 64 MiB of request.
         *     In a cluster its nodes alone may ask: they have reserved the room.
         */
        post: operations["activate_for_peer"];
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/peer/clones": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        get?: never;
        put?: never;
        /**
         * Make clones of an instant of another host's VM. Their pages are fetched from
         *     there as they are touched. At most 64 MiB of request. In a cluster its nodes
         *     alone may ask: they have reserved the room.
         */
        post: operations["clones"];
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/peer/families": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        get?: never;
        put?: never;
        /**
         * Hear where the places of families are that this host was lent some of, and say how
         *     it stands to them. Asked again and again, by the host that lent them; in a cluster,
         *     by its nodes alone.
         */
        post: operations["families"];
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/peer/migrations": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        get?: never;
        put?: never;
        /**
         * Take a step of a VM's way to this host, from the one that it leaves. At most 64 MiB of
         *     request. In a cluster its nodes alone may ask: they have reserved the room.
         */
        post: operations["migrations"];
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/peer/migrations/{migration}/commands": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /**
         * Follow the commands in a VM that has come to this host, whose clients are those of the host that
         *     asks: the one that it came from.
         * @description The request has `Connection: Upgrade` and `Upgrade: tcp`. After the answer, 101, the connection
         *     carries frames of the link between host and agent. In a cluster its nodes alone may ask.
         */
        get: operations["follow_commands"];
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/peer/migrations/{migration}/volume": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        get?: never;
        /**
         * Take a snapshot of a volume that comes with a VM: the body is a stream as `forkyard-blockd
         *     send` writes it. In a cluster its nodes alone may ask.
         */
        put: operations["volume"];
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/peer/ticket": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        get?: never;
        put?: never;
        /**
         * Say how clones of another host's ticket ended that were made here, and wait for it.
         *     Asked until all of them have; in a cluster, by its nodes alone.
         */
        post: operations["ticket"];
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/peer/volumes": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        get?: never;
        put?: never;
        /** Take a step of a volume's way from host to host. In a cluster its nodes alone may ask. */
        post: operations["volume_step"];
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/peer/volumes/{volume}/hold": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /**
         * Hold a copy of a volume of the host that asks, flush by flush.
         * @description The request has `Connection: Upgrade` and `Upgrade: tcp`. After the answer, 101, the connection
         *     carries snapshots one way, and which of them are durable here the other way. In a cluster its nodes
         *     alone may ask.
         */
        get: operations["hold_volume"];
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/peer/volumes/{volume}/supply": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /**
         * Fetch blocks that a volume lacks from the host that asks, where it came from.
         * @description The request has `Connection: Upgrade` and `Upgrade: tcp`. After the answer, 101, the connection
         *     carries questions for blocks, and what the host that asked answers them by. In a cluster its nodes
         *     alone may ask.
         */
        get: operations["supply"];
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/ping": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /** Check that the daemon answers. */
        get: operations["ping"];
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/quotas": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /** List what users have of the cluster, and may have. */
        get: operations["quotas"];
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/quotas/{user}": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        get?: never;
        put?: never;
        /** Say what a user may have of the cluster. Not over the network. */
        post: operations["set_quota"];
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/sched": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /** Show the vCPUs that are scheduled on this host. */
        get: operations["scheduling"];
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/sched/processes/{pid}": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        get?: never;
        /** Have the vCPUs of any QEMU of the host scheduled. Not over the network. */
        put: operations["schedule_process"];
        post?: never;
        /** Let the vCPUs of any QEMU of the host go. Not over the network. */
        delete: operations["release_process"];
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/stores": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /** List the substrates in an object store, by name. For the host's operator alone. */
        get: operations["list_stored_substrates"];
        put?: never;
        post?: never;
        /** Remove a substrate from an object store, with what nothing there needs any more. For the host's operator alone. */
        delete: operations["remove_stored_substrate"];
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/stores/collect": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        get?: never;
        put?: never;
        /** Remove from an object store what no substrate in it needs. For the host's operator alone. */
        post: operations["collect_store"];
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/substrate-key": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /** Show the key by which this host signs what it pushes. */
        get: operations["substrate_key"];
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/substrate-keys": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /** List the keys of other hosts whose substrates are trusted here. */
        get: operations["list_trusted_keys"];
        put?: never;
        /** Trust a key from now on. For the host's operator alone. */
        post: operations["trust_key"];
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/substrate-keys/{key}": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        get?: never;
        put?: never;
        post?: never;
        /** Trust a key no longer. Substrates that were pulled stay. For the host's operator alone. */
        delete: operations["forget_key"];
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/substrates": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /** List the substrates that the asker may activate, the oldest first. */
        get: operations["list_substrates"];
        put?: never;
        /** Make a substrate of a running VM of this host. The VM ends as that, unless `live` is said. */
        post: operations["dock"];
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/substrates/{name}": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /** Show where a substrate's bytes are, and what its guest did before it was docked. */
        get: operations["inspect_substrate"];
        put?: never;
        post?: never;
        /** Remove a substrate that nothing lies over. */
        delete: operations["remove_substrate"];
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/substrates/{name}/activate": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        get?: never;
        put?: never;
        /**
         * Make VMs of a substrate. Each is the founder of a family of its own. Other hosts make those that are to
         *     run there, over pages that they fetch from this one.
         */
        post: operations["activate_substrate"];
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/substrates/{name}/activations": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /**
         * Activations of a substrate that are watched: those under way, and the last ones that were, the oldest first. Of
         *     each, how far this host is, and which others have answered.
         */
        get: operations["activations"];
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/substrates/{name}/push": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        get?: never;
        put?: never;
        /** Put a substrate into a folder of this host or an object store, for other hosts. For the host's operator alone. */
        post: operations["push_substrate"];
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/substrates/{name}/standby": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        get?: never;
        put?: never;
        /** Keep VMs of a substrate ready, for activations to take: so many, or as many as recent demand asks for. For its owner. */
        post: operations["keep_standby"];
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/substrates/pull": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        get?: never;
        put?: never;
        /** Bring in a substrate from a folder of this host or an object store. For the host's operator alone. */
        post: operations["pull_substrate"];
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/tickets": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /**
         * List the tickets of guests on this host that are not used up, and of other hosts' those
         *     whose clones are made here.
         */
        get: operations["list_tickets"];
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/tickets/{ticket}": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        get?: never;
        put?: never;
        post?: never;
        /** End a ticket's clones, give back what it promised, and use it up. */
        delete: operations["remove_ticket"];
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/tokens": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /** List the tokens, expired ones included. */
        get: operations["list_tokens"];
        put?: never;
        /** Give out a token. Not over the network. */
        post: operations["create"];
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/tokens/{token}": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        get?: never;
        put?: never;
        post?: never;
        /**
         * Take a token back: requests that come with it from now on are refused. Not
         *     over the network.
         */
        delete: operations["remove_token"];
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/usage": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /**
         * Show the use every VM has made of the host so far: the difference between
         *     two answers is the use in between.
         */
        get: operations["usage"];
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/vms": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /**
         * List the VMs, the oldest first: in a cluster those of every node, this
         *     one's first, as the others last told of them.
         */
        get: operations["list_vms"];
        put?: never;
        /** Boot a VM. Its image is built if it has not been yet, which takes minutes. */
        post: operations["run"];
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/vms/{vm}": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /** One VM. */
        get: operations["one"];
        put?: never;
        post?: never;
        /** End a VM and remove all that is its own. */
        delete: operations["remove_vm"];
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/vms/{vm}/archive": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /**
         * Read a file, or a folder with all that is in it, as a tar stream. A path that ends in `/.`
         *     is the content of a folder. Sockets, FIFOs and devices are left out.
         */
        get: operations["read_archive"];
        /**
         * Unpack a tar stream in a guest, where all of it is root's: into a folder that exists,
         *     or, if it has one file or folder, under that name.
         */
        put: operations["write_archive"];
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/vms/{vm}/checkpoint": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        get?: never;
        put?: never;
        /**
         * Keep the present instant of a running VM on disk. It is a VM by itself, in
         *     the state `checkpoint`, that can be forked any time later.
         */
        post: operations["checkpoint"];
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/vms/{vm}/console": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        get?: never;
        put?: never;
        /**
         * Type on a guest's serial console. What is typed, in order, is the body; it
         *     waits while the guest does not read.
         */
        post: operations["console"];
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/vms/{vm}/disk": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /** The disk of a checkpoint, or of a VM that has stopped, as a whole. */
        get: operations["export_disk"];
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/vms/{vm}/egress": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        get?: never;
        put?: never;
        /**
         * Say what the VMs of a VM's family may reach from now on, on the host where it is. Connections to what
         *     may be reached no more end; others go on.
         */
        post: operations["egress"];
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/vms/{vm}/exec": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /**
         * Run a command in a guest over a WebSocket.
         * @description The first message is the request, each that follows is input, and the answers are events, as the
         *     lines of `POST` are. The command's input ends by `eof` alone. When nothing follows, or with an
         *     event `error`, the socket is closed. A client that closes it, or answers no ping for two minutes, has gone away.
         *     Clients that can set no header offer the protocols `forkyard.v1` and `forkyard.token.TOKEN`.
         */
        get: operations["exec_socket"];
        put?: never;
        /**
         * Run a command in a guest.
         * @description With a body of `application/json` the command's input is what the request has. With one of
         *     `application/x-ndjson` the first line is the request, and each line that follows is input; both
         *     directions stream at the same time. Over the network a client that has nothing to send sends an
         *     empty line every 20 seconds at the latest. If the client goes away, all processes of the
         *     command get SIGHUP, and those left after two seconds SIGKILL, unless it was started with `detach` or `keep`.
         */
        post: operations["exec"];
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/vms/{vm}/files": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /** Read a file's bytes, to its end whatever its size. */
        get: operations["read_file"];
        /**
         * Replace a file as a whole, or make it: others see the old one or the new one. Its
         *     mode and owner stay; a link stays, and what it leads to is replaced.
         */
        put: operations["write_file"];
        post?: never;
        /** Remove a file, or a folder: an empty one, or with all that is in it. */
        delete: operations["remove_file"];
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/vms/{vm}/folder": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /** List a folder, by name. */
        get: operations["list_folder"];
        /** Make a folder, and those above it that are not there. */
        put: operations["make_folder"];
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/vms/{vm}/fork": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        get?: never;
        put?: never;
        /**
         * Fork a running VM into clones. It goes on; each clone wakes in the same
         *     instant of memory and disk, with an identity of its own.
         */
        post: operations["fork"];
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/vms/{vm}/forks": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /**
         * Forks of a VM that are under way, and the last ones that were, the oldest first: how
         *     far each host is with its clones.
         */
        get: operations["forks"];
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/vms/{vm}/friendly": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /** Show whether a VM adapts its demand, what it senses, and what it does. */
        get: operations["friendly"];
        /**
         * Have a VM adapt its demand to what its host can give. What is absent stays as it is. Done again,
         *     it changes nothing else.
         */
        put: operations["make_friendly"];
        post?: never;
        /** End it: everything in the VM is as it was before. Of a VM that does not adapt, nothing changes. */
        delete: operations["end_friendly"];
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/vms/{vm}/idle": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        get?: never;
        put?: never;
        /**
         * Say what becomes of a VM that is not used for a time. Its time begins now. If it is paused or
         *     stopped then, its next command, copy, session or connection to a port by this API wakes it.
         */
        post: operations["set_idle"];
        /** Let a VM run on that is not used. */
        delete: operations["remove_idle"];
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/vms/{vm}/independence": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        get?: never;
        put?: never;
        /**
         * Have the disk of a running VM come to depend on no other file: what it lies over is copied in the background, at
         *     64 MiB a second at most, while the VM runs. `independence` in the answer, and in that of `inspect`, shows how far it is.
         */
        post: operations["make_independent"];
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/vms/{vm}/inspect": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /** Show the place of a VM's bytes, and what its forks took. */
        get: operations["inspect"];
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/vms/{vm}/labels": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        get?: never;
        put?: never;
        /** Give a VM these labels instead of those it had. */
        post: operations["set_labels"];
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/vms/{vm}/lifetime": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        get?: never;
        put?: never;
        /**
         * Say for how long from now on a VM is wanted, and what becomes of it then. Again and again, it is
         *     kept alive.
         */
        post: operations["set_lifetime"];
        /** Want a VM until it is removed. */
        delete: operations["remove_lifetime"];
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/vms/{vm}/logs": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /**
         * Show the output of a guest on its serial console: its kernel's, and that of
         *     programs that write there. The last mebibyte is kept, and nothing of the time when
         *     no daemon ran.
         */
        get: operations["logs"];
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/vms/{vm}/migrate": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        get?: never;
        put?: never;
        /**
         * Move a running VM to another host: a node of the cluster, or a peer. It goes on there under
         *     its identity; commands under way in it go on, and this host goes on serving their clients.
         */
        post: operations["migrate"];
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/vms/{vm}/move": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        get?: never;
        put?: never;
        /** Move a file or folder within a guest. */
        post: operations["move_file"];
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/vms/{vm}/pause": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        get?: never;
        put?: never;
        /** Have a VM stand still until it is told to go on; it can be forked so. */
        post: operations["pause"];
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/vms/{vm}/ports/{port}": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /**
         * Connect to a TCP port of a guest, whether its server listens on the guest's loopback or on all
         *     addresses.
         * @description The request has `Connection: Upgrade` and `Upgrade: tcp`. Once the server has taken the
         *     connection the answer is 101, and from then on the connection carries the server's bytes as they
         *     are. Each direction ends by itself: by the end of what is sent, over TLS by `close_notify`.
         *     A connection that breaks off on one side is reset on the other.
         */
        get: operations["connect_port"];
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/vms/{vm}/published": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        get?: never;
        put?: never;
        /** Have more ports of the host lead to a VM that runs, until it stops, or give it addresses of its own. */
        post: operations["publish"];
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/vms/{vm}/published/{port}": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        get?: never;
        put?: never;
        post?: never;
        /**
         * Close a port of the host that leads to a VM, or take an address of its own from it. Connections that are
         *     open go on.
         */
        delete: operations["unpublish"];
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/vms/{vm}/rename": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        get?: never;
        put?: never;
        /** Give a VM or a checkpoint another name. The guest's host name stays until it boots again. */
        post: operations["rename_vm"];
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/vms/{vm}/restart-policy": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        get?: never;
        put?: never;
        /** Say whether a VM is started again when it ends by itself, or its host went down, from now on. Clones are not. */
        post: operations["set_restart"];
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/vms/{vm}/resume": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        get?: never;
        put?: never;
        /** Let a paused VM go on. */
        post: operations["resume"];
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/vms/{vm}/sched": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /** Show the vCPUs that are scheduled on a VM's host. */
        get: operations["scheduling_of_vm"];
        /**
         * Have a VM's vCPUs scheduled. What is absent stays as it is. All scheduled VMs of a host are
         *     under one policy: one that is named here is that of all. The settings end with the VM's process:
         *     when it is stopped, or moved to another host.
         */
        put: operations["schedule_vm"];
        post?: never;
        /** Let a VM's vCPUs go, as if they had never been scheduled. */
        delete: operations["release_vm"];
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/vms/{vm}/sessions": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /**
         * List the commands that a guest keeps: those started with `detach` or `keep` that run, and the
         *     last that have ended.
         */
        get: operations["sessions"];
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/vms/{vm}/sessions/{pid}": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /**
         * Attach to a command that a guest keeps over a WebSocket.
         * @description Messages are as the lines of `POST`.
         */
        get: operations["attach_session_socket"];
        put?: never;
        /**
         * Attach to a command that a guest keeps.
         * @description The answer is as that of `exec`: `started`, then what is kept of the command's output and what
         *     it goes on to write. Each line of the body is input; the command's
         *     input ends by `eof` alone. The command goes on when the client leaves.
         */
        post: operations["attach_session"];
        /**
         * Send a command that a guest keeps a signal: unless another is said, one that kills it and all
         *     that it started.
         */
        delete: operations["kill_session"];
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/vms/{vm}/shares": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /** Tokens for ports of a VM that hold, the oldest first. */
        get: operations["list_shares"];
        put?: never;
        /**
         * Give out a token with which clients of a gateway reach one port of a VM, until it expires or is
         *     taken back. It is shown this once.
         */
        post: operations["share_port"];
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/vms/{vm}/shares/{share}": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        get?: never;
        put?: never;
        post?: never;
        /** Take a token back: gateways refuse it within two seconds. Connections that are open go on. */
        delete: operations["remove_share"];
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/vms/{vm}/start": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        get?: never;
        put?: never;
        /** Boot a VM that has stopped again, from its own disk; answered once its agent answers. */
        post: operations["start"];
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/vms/{vm}/stat": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /** Tell of a file: kind, size, mode, owner, time. Of a link, the link itself. */
        get: operations["stat_file"];
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/vms/{vm}/stop": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        get?: never;
        put?: never;
        /** Power a VM off; its record stays until it is removed. */
        post: operations["stop"];
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/vms/{vm}/watch": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /** Watch a folder, until the client goes away or the folder does. */
        get: operations["watch_folder"];
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/volumes": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /** List the volumes of this host, sorted by name; in a cluster, those of all nodes. */
        get: operations["list_volumes"];
        put?: never;
        /** Make a volume: of zeroes, or a copy of an image's disk or of a file of the host. */
        post: operations["create_volume"];
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/volumes/{name}": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /** Show a volume, its snapshots, and the VMs that have it. */
        get: operations["inspect_volume"];
        put?: never;
        post?: never;
        /** Remove a volume that no VM has, or lies over. */
        delete: operations["remove_volume"];
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/volumes/{name}/bring": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        get?: never;
        put?: never;
        /** Move a volume that no VM has here, from the host that it is at. */
        post: operations["bring_volume"];
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/volumes/{name}/export": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        get?: never;
        put?: never;
        /** Copy a volume that no VM writes, or a snapshot of any, into a new file of the host, as a raw disk. */
        post: operations["export_volume"];
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/volumes/{name}/mirror": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        get?: never;
        put?: never;
        /** Say which other hosts every flush of a volume waits for. */
        post: operations["mirror_volume"];
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/volumes/{name}/move": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        get?: never;
        put?: never;
        /**
         * Move a volume that no VM has to another host, with its snapshots. It is at home there once this is
         *     answered; if it fails, it is here, unless the answer says that this is not known yet.
         */
        post: operations["move_volume"];
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/volumes/{name}/promote": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        get?: never;
        put?: never;
        /** Make a copy that is held for another host a volume that is at home here. That host is fenced. */
        post: operations["promote_volume"];
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/volumes/{name}/resize": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        get?: never;
        put?: never;
        /** Change the size of a volume that no VM has. */
        post: operations["resize_volume"];
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/volumes/{name}/snapshots": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        get?: never;
        put?: never;
        /** Keep a volume as it is, also while a VM writes it. Blocks are shared. */
        post: operations["snapshot_volume"];
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/volumes/{name}/snapshots/{snapshot}": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        get?: never;
        put?: never;
        post?: never;
        /** Remove a snapshot that no VM lies over. */
        delete: operations["remove_volume_snapshot"];
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/volumes/{name}/tune": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        get?: never;
        put?: never;
        /** Change the law by which blocks of a volume are sent ahead, also while a VM writes it. */
        post: operations["tune_volume"];
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/volumes/{name}/why": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /** Tell why a block went to other hosts, came from there, or did not. */
        get: operations["why_volume_block"];
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
}
export type webhooks = Record<string, never>;
export interface components {
    schemas: {
        /** @description `POST /v1/substrates/{name}/activate`: make VMs of a substrate. */
        ActivateRequest: {
            /**
             * Format: int32
             * @description VMs wanted.
             */
            count?: number;
            /**
             * Format: int64
             * @description Root disk of each in bytes, no smaller than it was docked; as it was docked if absent. Its file system is as large
             *     before the VM is ready.
             */
            disk?: number;
            /** @description Environment of every command that is run in them from outside. */
            env?: {
                [key: string]: string;
            };
            idle?: components["schemas"]["Idle"] | null;
            /** @description Have the disk of each come to depend on nothing, in the background. */
            independent?: boolean;
            /**
             * @description A VM, by name or id, whose family's network they join, with that family's rights there; a
             *     network of its own for each if absent.
             */
            join?: string | null;
            /** @description Labels that each is told apart by; its clones have them, too. */
            labels?: components["schemas"]["Labels"];
            lifetime?: components["schemas"]["Lifetime"] | null;
            /**
             * Format: int32
             * @description Most clones of each one's family that may be alive at once; no limit if absent.
             */
            max_clones?: number | null;
            /**
             * Format: int64
             * @description Memory of each in bytes, what was docked and whole blocks of 128 MiB more; as it was docked if
             *     absent.
             */
            memory?: number;
            name?: components["schemas"]["VmName"] | null;
            /** @description Rights of each of them and its clones on the network. */
            network?: components["schemas"]["NetworkPolicy"];
            /** @description Paths in the guest that no clone inherits, unless a fork says so. */
            secrets?: string[];
            /** @description In a cluster: each on the node with most vCPUs free. */
            spread?: boolean;
            /**
             * @description Hosts that make them, in turns: nodes of the cluster or peers by name, `here` for the host that is
             *     asked; that one alone if absent.
             */
            to?: string[];
            /**
             * Format: int32
             * @description vCPUs of each; as many as were docked if absent.
             */
            vcpus?: number | null;
            /**
             * Format: int32
             * @description Clones to keep warm of each.
             */
            warm?: number;
            watch?: components["schemas"]["RequestId"] | null;
        };
        /** @description Result of an activation. */
        ActivateResponse: {
            /**
             * Format: int64
             * @description From the request until user code of the last VM went on, in microseconds.
             */
            ready_us: number;
            /**
             * Format: int64
             * @description From the request until the last VM's vCPUs ran, in microseconds.
             */
            running_us: number;
            /** @description A VM or an error for each VM wanted. */
            vms: components["schemas"]["CloneResult"][];
        };
        /** @description The family's private network as one of its VMs sees it. */
        Address: {
            /**
             * Format: ipv4
             * @description The VM's own address.
             */
            ip: string;
            /** @description The VM's Ethernet address. */
            mac: components["schemas"]["Mac"];
            /**
             * Format: int32
             * @description Length of the network's prefix, in bits.
             */
            prefix: number;
        };
        /** @description An error: what happened, why, and what to do about it. */
        ApiError: {
            /** @description Advice to the user. */
            hint?: string | null;
            /** @description Class of the error, to branch on. */
            kind: components["schemas"]["ErrorKind"];
            /** @description Description of the error and its reason, causes joined by a colon. */
            message: string;
        };
        /**
         * @description Action on a VM whose time is up.
         * @enum {string}
         */
        AtEnd: "rm" | "stop" | "pause" | "checkpoint";
        /** @description A page image of a VM's that has not all come from another host yet. */
        Awaited: {
            /** @description Pages of it that are still away. */
            away: components["schemas"]["PageCount"];
            /** @description The image. */
            image: components["schemas"]["ImageId"];
            /** @description Size of the image. */
            pages: components["schemas"]["PageCount"];
            /** @description Part of the VM that the image is. */
            part: components["schemas"]["VmPart"];
        };
        /**
         * @description Progress of a copy.
         * @enum {string}
         */
        BackupState: "done" | "waiting" | "failing";
        /** @description The copy of a substrate in the store that the host backs its pool up to. */
        BackupView: {
            /**
             * Format: int64
             * @description Seconds since 1970 at which it was complete.
             */
            at?: number | null;
            /** @description Reason why the last attempt failed; there will be another. */
            problem?: string | null;
            /** @description Progress of the copy. */
            state: components["schemas"]["BackupState"];
            /** @description Address of the store. */
            store: string;
        };
        /** @description Bits a second, from `16kbit` to `100gbit`. */
        BitRate: string;
        /** @description `POST /v1/volumes/{name}/bring`: move a volume that no VM has here. */
        BringVolume: {
            /** @description Part of it that is sent before it is at home here. */
            disk?: components["schemas"]["DiskTransfer"];
            /**
             * @description Host that it is at, as it is called here, or its address. If absent: the node where the cluster
             *     says that it is, or the host that a copy here is of.
             */
            from?: string | null;
        };
        /**
         * Format: int64
         * @description A number of bytes.
         */
        ByteCount: number;
        /** @description A checkpoint is on disk. */
        CheckpointMade: {
            parent?: components["schemas"]["VmId"] | null;
        };
        /** @description A checkpoint is no more. */
        CheckpointRemoved: {
            parent?: components["schemas"]["VmId"] | null;
        };
        /**
         * @description `POST /v1/vms/{id}/checkpoint`: keep the present instant of a running VM.
         *     It is a VM by itself, in the state `checkpoint`, that can be forked.
         */
        CheckpointRequest: {
            /** @description Priority: to be done soon, or to spare the VM. */
            mode?: components["schemas"]["ForkMode"];
            name?: components["schemas"]["VmName"] | null;
        };
        /** @description Result of one clone. */
        CloneResult: {
            /** @description The clone runs, with an identity of its own. */
            vm: components["schemas"]["VmView"];
        } | {
            /** @description The clone does not run, and nothing of it is left. */
            error: components["schemas"]["ApiError"];
        };
        /** @description Things that were removed from an object store. */
        Collected: {
            /** @description Bytes of those. */
            bytes: components["schemas"]["ByteCount"];
            /**
             * Format: int64
             * @description Pieces that were removed.
             */
            pieces: number;
        };
        /** @description `POST /v1/stores/collect`: remove what no substrate in a store needs. */
        CollectRequest: {
            /** @description Address of the store: `file:///FOLDER` or `s3://BUCKET/PREFIX`. */
            store: string;
        };
        /** @description A CPU, and the vCPUs it is meant for. */
        CpuSched: {
            /**
             * Format: int32
             * @description The host's number of it.
             */
            cpu: number;
            /**
             * Format: int32
             * @description The thread it is meant to run.
             */
            running?: number | null;
            /** @description Threads waiting in its queue, front first. */
            waiting: number[];
        };
        /** @description `POST /v1/volumes`: make a volume. */
        CreateVolume: {
            /** @description Encrypt its blocks on the host's disk. */
            encrypted?: boolean;
            /** @description Raw disk that it is a copy of: a file of the host. */
            file?: string | null;
            /** @description Image whose disk it is a copy of; zeroes if absent. */
            image?: string | null;
            /**
             * @description File of the host with its key, 64 hexadecimal digits, of mode 0600. A key is made if absent,
             *     and goes with the volume.
             */
            key_file?: string | null;
            /** @description Name of the volume. */
            name: components["schemas"]["VmName"];
            size?: components["schemas"]["ByteCount"] | null;
        };
        /** @description Volume that is to be a data disk of a VM. */
        DataVolume: {
            /** @description Encrypt the blocks of one that is made. One that is there and not encrypted is refused. */
            encrypted?: boolean;
            /**
             * @description Name of the volume, and the serial number of the disk in the guest: 20
             *     characters at most.
             */
            name: components["schemas"]["VmName"];
            /** @description The VM and its clones read the volume as it is now, and write nothing; any number of VMs may. */
            read_only?: boolean;
            size?: components["schemas"]["ByteCount"] | null;
            /** @description Snapshot that they read instead; then the disk is read-only. */
            snapshot?: string | null;
        };
        /** @description An image by what it differs in from one that was sent before. */
        Delta: {
            /** @description Pages that differ. */
            changed: components["schemas"]["PackedRuns"];
            /** @description The image. */
            image: components["schemas"]["ImageId"];
            /** @description The one sent before. */
            over: components["schemas"]["ImageId"];
        };
        /** @description `GET /v1/doctor`, `POST /v1/doctor`: what the host looks like. */
        Diagnosis: {
            /** @description Things that were left behind. */
            leftovers: components["schemas"]["Leftover"][];
            /**
             * @description Settings of this host that Forkyard has changed for as long as it needs
             *     them.
             */
            notes?: string[];
            /** @description Things this host lacks, one line each: what, why it matters, what to do. */
            problems: string[];
        };
        /** @description One layer of a disk. */
        DiskSlice: {
            /** @description Bytes it takes there. */
            allocated: components["schemas"]["ByteCount"];
            /** @description Path on the host. */
            path: string;
        };
        /**
         * @description Part of a volume that is sent before its VM moves.
         * @enum {string}
         */
        DiskTransfer: "auto" | "ahead" | "on-demand";
        /** @description `POST /v1/substrates`: make a substrate of a running VM. */
        DockRequest: {
            /** @description Services that run on, of those that would be stopped. */
            keep_services?: string[];
            /** @description Kind of the substrate. */
            kind: components["schemas"]["SubstrateKind"];
            /** @description Dock a clone; the VM runs on. Otherwise the VM ends as the substrate. */
            live?: boolean;
            /**
             * Format: int32
             * @description Free memory that is left to the guest, in KiB; a usual size if absent.
             */
            margin_kib?: number | null;
            /** @description Name of the substrate. */
            name: components["schemas"]["VmName"];
            /** @description Name or id of the VM. */
            vm: string;
        };
        /**
         * @description `POST /v1/vms/{id}/egress`: what the VMs of a family may reach from now on, instead of what was said
         *     before.
         */
        EgressRequest: {
            /**
             * @description All that may be reached, networks and host names; if empty, whatever is no private network.
             * @default []
             */
            allow: string[];
            /**
             * @description Destinations that may not be reached, even if it is allowed.
             * @default []
             */
            deny: string[];
            /**
             * @description Way out, if any.
             * @default none
             */
            out: components["schemas"]["WayOut"];
        };
        /** @description End of the time for which a VM is wanted. */
        Ends: {
            /** @description Action then. */
            action: components["schemas"]["AtEnd"];
            /**
             * Format: int64
             * @description Seconds since 1970.
             */
            at: number;
        };
        /**
         * @description The program that an image is there to run, as a container image names it.
         *     Kept in the image itself, so that it goes where the disk goes.
         */
        EntryPoint: {
            /** @description The program, looked for in its `PATH`, and its arguments. */
            argv: string[];
            /** @description Folder it starts in; the root if empty. */
            dir?: string;
            /**
             * @description Environment of the program. `PATH` and `HOME` are made up if they are
             *     not here.
             */
            env?: {
                [key: string]: string;
            };
            /** @description Time at which a VM starts it. */
            start?: components["schemas"]["Start"];
            /**
             * @description Signal that asks it to end: a name, with or without `SIG`, or a number;
             *     SIGTERM if empty.
             */
            stop_signal?: string;
            /**
             * @description User that it runs as: `USER` or `USER:GROUP`, each a name of the image's
             *     or a number; root if empty.
             */
            user?: string;
        };
        /**
         * Format: uuid
         * @description One life of a VM's memory: fresh at boot and at every restore, for clones
         *     of clones too. Drawn, never read from a clock.
         */
        Epoch: string;
        /**
         * @description Reason why a request was refused or failed, in a form a program can branch on.
         * @enum {string}
         */
        ErrorKind: "invalid" | "not_found" | "conflict" | "exhausted" | "guest" | "timeout" | "host" | "unauthorized" | "forbidden";
        /**
         * @description Kind of an event's subject.
         * @enum {string}
         */
        EventKind: "vm" | "fork" | "migration" | "ticket" | "checkpoint" | "image" | "node" | "transfer" | "stream";
        /** @description Things that an event is about, as far as it is about them. */
        EventSubject: {
            fork?: components["schemas"]["ForkId"] | null;
            /** @description The guest image, by name. */
            image?: string | null;
            node?: components["schemas"]["NodeName"] | null;
            pages?: components["schemas"]["ImageId"] | null;
            ticket?: components["schemas"]["TicketId"] | null;
            vm?: components["schemas"]["EventVm"] | null;
        };
        /** @description A VM, as an event names it. */
        EventVm: {
            family?: components["schemas"]["FamilyId"] | null;
            /** @description Id of the VM. */
            id: components["schemas"]["VmId"];
            /** @description Name of the VM. */
            name: components["schemas"]["VmName"];
        };
        /** @description Something a command did. */
        ExecEvent: {
            /** @description Standard output of the command: base64. */
            stdout: string;
        } | {
            /** @description Standard error of the command: base64. */
            stderr: string;
        } | {
            /** @description The command ended; nothing follows. */
            exit: components["schemas"]["ExitStatus"];
        } | {
            /** @description The guest or the link to it failed; nothing follows. */
            error: components["schemas"]["ApiError"];
        } | {
            /**
             * @description The command runs. Only of a command that is kept; nothing follows if it
             *     was left to itself.
             */
            started: components["schemas"]["ExecStarted"];
        } | {
            /**
             * Format: int32
             * @description So many bytes of its standard input have been passed on; 0: its end. Only if input is streamed.
             */
            taken: number;
        } | {
            /** @description The command could not be started; nothing follows. */
            not_started: components["schemas"]["NotStarted"];
        } | {
            /**
             * @description The command took longer than it was given, and was killed with all that
             *     it started; nothing follows.
             */
            timed_out: components["schemas"]["ExecTimedOut"];
        };
        /**
         * @description A line that follows the request in a body of `application/x-ndjson`: input for a command that
         *     runs. Empty lines are ignored; the end of the body is the end of the command's input.
         */
        ExecInput: {
            /**
             * @description Bytes for its standard input, base64. [`ExecInput::WINDOW`] bytes may be on their way that
             *     no [`ExecEvent::Taken`] has told of; more, and signals wait behind them.
             */
            stdin: string;
        } | "eof" | {
            /** @description The terminal has another size. */
            resize: components["schemas"]["WindowSize"];
        } | {
            /**
             * @description A signal for its first process, by number; 2 and 3, which are keys of a terminal, are for its
             *     process group, and 9 kills all that it started, too. What is left when it ends after 1, 2, 3 or 15
             *     is hung up on.
             */
            signal: components["schemas"]["SignalNumber"];
        };
        /**
         * @description `POST /v1/vms/{id}/exec`: run a command in a guest.
         *
         *     The answer is a stream of lines, each one [`ExecEvent`] as JSON. What the request leaves open
         *     is as the container image of the guest says, if it was made of one.
         */
        ExecRequest: {
            /** @description Program and arguments; the program is looked up in the guest's PATH. */
            argv: string[];
            /**
             * @description Leave the command to itself: it reads nothing and goes on whatever becomes of the client. The
             *     answer ends with [`ExecEvent::Started`]. The last of what it writes is kept for clients that
             *     attach to it.
             */
            detach?: boolean;
            /** @description Environment added to that of the image: names and values. */
            env?: string[][];
            /**
             * @description Keep the command: it goes on whatever becomes of the client, which can attach to it again.
             *     [`ExecEvent::Started`] comes before all that it writes.
             */
            keep?: boolean;
            /**
             * @description Standard input of the command, base64; then end of file. With a stream of
             *     [`ExecInput`] it comes before what that brings.
             */
            stdin?: string | null;
            /** @description Label of a command that is kept. */
            tag?: string | null;
            /**
             * Format: int32
             * @description Seconds after which the command, and all that it started, is killed.
             */
            timeout_s?: number | null;
            tty?: components["schemas"]["WindowSize"] | null;
            /**
             * @description `USER` or `USER:GROUP`, each a name of the guest's or a number; if absent the image's, or
             *     root.
             */
            user?: string | null;
            /** @description Working directory; if absent the image's, or `/`. */
            workdir?: string | null;
        };
        /** @description A command that is kept. */
        ExecStarted: {
            /**
             * Format: int32
             * @description Process id in the guest.
             */
            pid: number;
        };
        /** @description A command that was killed. */
        ExecTimedOut: {
            /**
             * Format: int32
             * @description Seconds it was given.
             */
            after_s: number;
        };
        /** @description End of a process. */
        ExitStatus: {
            /**
             * Format: int32
             * @description By itself, with this code.
             */
            code: number;
        } | {
            /**
             * Format: int32
             * @description By this signal.
             */
            signal: number;
        };
        /**
         * @description Format of a disk that is exported.
         * @enum {string}
         */
        ExportFormat: "raw" | "qcow2";
        /** @description `POST /v1/volumes/{name}/export`: copy a volume into a raw disk, a new file of the host. */
        ExportVolume: {
            /** @description File, which must not exist. */
            file: string;
            /** @description Snapshot to copy; the volume as it is if absent. */
            snapshot?: string | null;
        };
        /**
         * @description A host of a family, and places of it that are given there. Of two that have a place,
         *     the one with fewer has it: it was lent those by the other.
         */
        FamilyHost: {
            /** @description The first of the places. */
            first: components["schemas"]["Member"];
            /**
             * Format: int32
             * @description Number of these places.
             */
            places: number;
            /** @description The host's end of the tunnels that families' networks go through. */
            tunnel: string;
        };
        /** @description A VM that was booted, and every clone that descends from it. */
        FamilyId: string;
        /** @description A family as the host knows it that lends places of it. */
        FamilyNews: {
            /** @description The family's hosts, but for those that it was told of by the receiver. */
            hosts: components["schemas"]["FamilyHost"][];
            /** @description The family. */
            id: components["schemas"]["FamilyId"];
            key?: components["schemas"]["NewsSecret"] | null;
            /** @description That host's end of tunnels. */
            tunnel: string;
        };
        /** @description Relation of a host to a family that it was lent places of. */
        FamilyStanding: {
            /** @description Hosts that it has lent some of these places in turn, and they others. */
            lent: components["schemas"]["FamilyHost"][];
            /** @description True if it has anything of the family. */
            member: boolean;
            /** @description End of tunnels; none if it has no part in such networks. */
            tunnel?: string | null;
        };
        /**
         * @description Change of a file in a folder that is watched.
         * @enum {string}
         */
        FileChange: "created" | "written" | "removed" | "moved_away" | "attributes";
        /** @description File in a guest. */
        FileEntry: {
            /**
             * Format: int32
             * @description Group.
             */
            gid: number;
            /** @description Kind. */
            kind: components["schemas"]["FileKind"];
            /**
             * Format: int32
             * @description Permission bits.
             */
            mode: number;
            /**
             * Format: int64
             * @description Last change of the content, in nanoseconds since 1970.
             */
            mtime_ns: number;
            /** @description Name in its folder; what is no UTF-8 in it is replaced. */
            name: string;
            /**
             * Format: int64
             * @description Size in bytes.
             */
            size: number;
            /** @description Target of a link. */
            target?: string | null;
            /**
             * Format: int32
             * @description Owner.
             */
            uid: number;
        };
        /** @description Change in a folder that is watched: a line of the answer to `GET /v1/vms/{vm}/watch`. */
        FileEvent: {
            /** @description Kind of change. */
            change: components["schemas"]["FileChange"];
            /** @description The file, seen from the folder; what is no UTF-8 in it is replaced. */
            name: string;
        };
        /**
         * @description Kind of a file.
         * @enum {string}
         */
        FileKind: "file" | "folder" | "link" | "other";
        /** @description Account of a copy into a guest. */
        FilesWritten: {
            /**
             * Format: int64
             * @description Bytes, holes left out.
             */
            bytes: number;
            /**
             * Format: int64
             * @description Files and links.
             */
            files: number;
            /** @description Members that were left out, and why. */
            notes?: string[];
        };
        /** @description A fork has begun. */
        ForkBegun: {
            /**
             * Format: int32
             * @description Clones to be made, on all hosts that this one has make them.
             */
            clones: number;
            watch?: components["schemas"]["RequestId"] | null;
        };
        /** @description One fork: one stop of one parent, and the clones made of it. */
        ForkId: string;
        /**
         * @description Resource that a fork spares.
         * @enum {string}
         */
        ForkMode: "fast" | "live";
        /** @description A fork is over. */
        ForkOver: {
            /**
             * Format: int32
             * @description Clones that were not made.
             */
            failed: number;
            /**
             * Format: int32
             * @description Clones that run.
             */
            ready: number;
            /** @description Reasons for those, each once; at most eight. */
            why: string[];
        };
        /**
         * @description Phase of a host that makes clones.
         * @enum {string}
         */
        ForkPhase: "granted" | "received" | "starting" | "ready" | "failed";
        /** @description `GET /v1/vms/{vm}/forks`: a fork under way, or one that was lately. */
        ForkProgress: {
            /** @description The fork. */
            fork: components["schemas"]["ForkId"];
            /** @description Each host that makes clones of it, the one that was asked first. */
            hosts: components["schemas"]["HostProgress"][];
            /** @description True once it is over: nothing of what follows changes any more. */
            over: boolean;
            watch?: components["schemas"]["RequestId"] | null;
        };
        /** @description This host has come so far with its clones. */
        ForkReached: {
            /** @description Phase that it has reached. */
            phase: components["schemas"]["ForkPhase"];
        };
        /**
         * @description Account of the time of one fork. Times in microseconds from the request
         *     unless said otherwise.
         */
        ForkReport: {
            /**
             * Format: int32
             * @description Times it was gone over for that.
             */
            ahead_rounds?: number;
            /**
             * Format: int64
             * @description Copying memory ahead while the parent ran, a length.
             */
            ahead_us?: number;
            /**
             * Format: int64
             * @description Part of the pause: copying private pages.
             */
            capture_us: number;
            /** @description Size of the device state. */
            descriptor: components["schemas"]["ByteCount"];
            /**
             * Format: int64
             * @description Part of the pause: saving the device state.
             */
            descriptor_us: number;
            /**
             * Format: int64
             * @description Part of the pause: freezing the disk.
             */
            disk_us: number;
            /**
             * Format: int64
             * @description From the publication of the image until the last clone's vCPUs ran, a
             *     length.
             */
            load_us: number;
            /** @description Pages copied so. */
            pages_ahead?: components["schemas"]["PageCount"];
            /** @description Pages of them that hold data and went into the image. */
            pages_captured: components["schemas"]["PageCount"];
            /** @description Pages of the image read until then, for all clones together: each once. */
            pages_fetched: components["schemas"]["PageCount"];
            /** @description Pages looked at because they were private to the parent. */
            pages_scanned: components["schemas"]["PageCount"];
            /**
             * Format: int64
             * @description The parent's vCPUs stood still for this long.
             */
            pause_us: number;
            /**
             * Format: int64
             * @description Asking the guest to hold still, a length.
             */
            quiesce_us: number;
            /**
             * Format: int64
             * @description Until the last clone's user code went on, with its own identity.
             */
            ready_us: number;
            /**
             * Format: int64
             * @description Until the last clone's vCPUs ran.
             */
            running_us: number;
            /**
             * Format: int64
             * @description Until every shell was there (0 if all were warm).
             */
            shells_us: number;
        };
        /** @description `POST /v1/vms/{id}/fork`: fork a running VM. */
        ForkRequest: {
            /**
             * Format: int32
             * @description Clones wanted.
             */
            count: number;
            /** @description True if they inherit what the VM was told to keep secret. */
            inherit_secrets?: boolean;
            /** @description Priority: the clones or the parent. */
            mode?: components["schemas"]["ForkMode"];
            /** @description More paths that these clones do not inherit. */
            scrub?: string[];
            /**
             * @description True if clones on other hosts fetch all pages in the background, and
             *     become independent of this host when they have.
             */
            settle?: boolean;
            /** @description In a cluster: make each on the node with most vCPUs free. Not with `to`. */
            spread?: boolean;
            /**
             * @description Hosts to make them on, in turns: peers by name, and `here`. Here alone if
             *     there are none.
             */
            to?: string[];
            watch?: components["schemas"]["RequestId"] | null;
        };
        /** @description Answer to a fork: one entry a clone, each a VM or the reason there is none. */
        ForkResponse: {
            /** @description One entry a clone wanted. */
            clones: components["schemas"]["CloneResult"][];
            /** @description The fork. */
            fork: components["schemas"]["ForkId"];
            /** @description Account of the time. */
            report: components["schemas"]["ForkReport"];
        };
        /** @description Answer to a fork that is not waited for. */
        ForkStarted: {
            /** @description The fork: its clones, as they come, are the VMs that name it. */
            fork: components["schemas"]["ForkId"];
        };
        /**
         * @description Law that a guest's threads follow, with its usual constants.
         * @enum {string}
         */
        FriendlyLaw: "aimd" | "careful" | "steady" | "binomial" | "quick" | "pi";
        /**
         * @description `PUT /v1/vms/{vm}/friendly`: how a VM is to adapt its demand. What is absent stays as it is, at
         *     first as is usual.
         */
        FriendlySettings: {
            /**
             * @description Constants to change, `KEY=VALUE` each, as in `monitor.threshold=2`.
             * @default []
             */
            changes: string[];
            /**
             * @description Constants, as the text of a configuration in TOML.
             * @default null
             */
            config: string | null;
            /**
             * @description Group to adapt: `exec`, commands that the host has run there; `image`, processes that the
             *     image's init or entry point started; or the path of a control group's folder there.
             * @default null
             */
            group: string | null;
            /** @default null */
            law: components["schemas"]["FriendlyLaw"] | null;
        };
        /**
         * @description CPU that a guest was given. Its kernel and programs have looked at it once, and go on using what
         *     they found.
         */
        GuestCpu: {
            /** @description Features, by the names that Linux has for them, if they depend on the host. */
            features?: string[];
            /**
             * @description Model, which must be the same wherever the guest goes: that of the engine and its version, or
             *     of the processor's vendor.
             */
            model: string;
        };
        /** @description A guest image. */
        GuestImage: {
            built?: components["schemas"]["ByteCount"] | null;
            /** @description Digest of the manifest that the registry had under that name. */
            digest?: string | null;
            entry?: components["schemas"]["EntryPoint"] | null;
            /** @description Name of its recipe, or the one it was imported under. */
            name: string;
            /** @description Origin. */
            origin?: components["schemas"]["ImageOrigin"];
            /** @description Source that it was made of: the image in its registry, the Dockerfile, or the VM. */
            source?: string | null;
            /** @description Purpose of the image. */
            summary: string;
        };
        /**
         * @description An instant of a VM as another host is given it (SnowFlock's descriptor, paper
         *     section 4.1).
         */
        Handout: {
            /** @description State of its devices and CPUs, packed by zstd, base64. */
            devices: string;
            disk?: components["schemas"]["RemotePages"] | null;
            /** @description The family, and what the other host may give of it. */
            family: components["schemas"]["HandoutFamily"];
            /**
             * @description Pages of its memory that come before all others, where all pages come first: those that
             *     clones of such a memory have touched before.
             */
            first?: components["schemas"]["PageRun"][];
            /** @description The fork. */
            fork: components["schemas"]["ForkId"];
            /** @description The key they are served by. */
            key: components["schemas"]["PageSecret"];
            /**
             * @description Pages of its memory that come after all others, where all pages come first: data that
             *     no clone is likely to need at once.
             */
            last?: components["schemas"]["PageRun"][];
            /** @description Description of the machine. */
            machine: components["schemas"]["HandoutMachine"];
            /** @description Memory of the VM. */
            memory: components["schemas"]["RemotePages"];
            /** @description Address at which its host's pager serves these. */
            pager: string;
            /** @description The VM it is an instant of. */
            parent: components["schemas"]["HandoutParent"];
            /**
             * Format: int32
             * @description [`Handout::VERSION`] of the host that made it.
             */
            version: number;
        };
        /** @description A family as another host is let into it. */
        HandoutFamily: {
            /** @description The first of the places that the other host gives to its clones. */
            first: components["schemas"]["Member"];
            /** @description The hosts of the family, as far as that one knows. */
            hosts: components["schemas"]["FamilyHost"][];
            /** @description Id of the family. */
            id: components["schemas"]["FamilyId"];
            key?: components["schemas"]["NewsSecret"] | null;
            /**
             * Format: int32
             * @description Most clones that may be alive at once, if there is a limit.
             */
            max_clones?: number | null;
            /** @description Rights of its VMs on the network. */
            network: components["schemas"]["NetworkPolicy"];
            /**
             * Format: int32
             * @description Number of the family: its network follows from it, on every host alike.
             */
            number: number;
            /**
             * Format: int32
             * @description Number of these places.
             */
            places: number;
            /**
             * @description The end of tunnels of the host that lets it in; none if that has no part in
             *     such networks.
             */
            tunnel?: string | null;
        };
        /** @description Description of a machine. */
        HandoutMachine: {
            /** @description Accelerator: `kvm` or `tcg`. */
            accel: string;
            /** @description Memory that its guest found when it booted. */
            booted: components["schemas"]["ByteCount"];
            cpu?: components["schemas"]["GuestCpu"] | null;
            /**
             * Format: int32
             * @description vCPUs of these that the VM was granted, if not all.
             */
            granted?: number | null;
            /** @description Image its first ancestor booted from. */
            image: string;
            /** @description Limits it to no more than that wherever it goes. */
            is_baseline?: boolean;
            /** @description Memory. */
            memory: components["schemas"]["ByteCount"];
            /** @description True if its guest reports which of its pages are free. */
            page_reporting: boolean;
            /**
             * Format: int32
             * @description Number of vCPUs.
             */
            vcpus: number;
        };
        /** @description The VM a handout is an instant of. */
        HandoutParent: {
            /**
             * Format: int32
             * @description Forks between it and the VM its family began with.
             */
            generation: number;
            /** @description Id of the VM. */
            id: components["schemas"]["VmId"];
            /** @description True if the VM is a clone itself. */
            is_clone: boolean;
            /** @description Place in the family. */
            member: components["schemas"]["Member"];
            /** @description Name of the VM. */
            name: components["schemas"]["VmName"];
            /** @description Paths in the guest that its clones do not inherit. */
            secrets: string[];
        };
        /** @description Properties that a VM keeps when it moves, and that its clones do not have. */
        HandoutVm: {
            /**
             * Format: int64
             * @description Seconds since 1970.
             */
            created: number;
            /** @description This life of its memory. */
            epoch: components["schemas"]["Epoch"];
            fork?: components["schemas"]["ForkId"] | null;
            /** @description True if its user wants it to stand still. */
            is_paused?: boolean;
            /** @description Problems of the guest when it came up. */
            notes: string[];
            parent?: components["schemas"]["VmId"] | null;
            /** @description Ports of the host that lead to it. */
            publish?: string[];
            /** @description Terms of the VM: what it was given beside its machine. */
            terms?: components["schemas"]["Terms"];
            /**
             * Format: int32
             * @description Clones to keep warm.
             */
            warm: number;
        };
        /** @description `GET /v1/events`: something that happened on a host. */
        HostEvent: {
            /** @description Kind of the subject. */
            kind: components["schemas"]["EventKind"];
            /**
             * Format: int64
             * @description Position in the stream. The first event has 1, each other one more than the one before.
             */
            seq: number;
            /** @description Stream that the event is of: a new one after each start of the daemon. */
            stream: components["schemas"]["StreamId"];
            /** @description Things that the event is about. */
            subject: components["schemas"]["EventSubject"];
            /**
             * Format: int64
             * @description Milliseconds since 1970, by the host's clock.
             */
            time_ms: number;
            /** @description Occurrence, with its data. */
            what: components["schemas"]["Occurrence"];
        };
        /** @description Progress of one host with its part of a fork. */
        HostProgress: {
            /**
             * Format: int32
             * @description Clones that were not made.
             */
            failed: number;
            /**
             * Format: int32
             * @description Clones it is to make.
             */
            granted: number;
            /** @description Name of the host; none: this one. */
            host?: string | null;
            /** @description Phase of the host. */
            phase: components["schemas"]["ForkPhase"];
            /**
             * Format: int32
             * @description Clones of these whose user code runs, each with an identity of its own.
             */
            ready: number;
            /** @description Reasons for the failures, each once. */
            why: string[];
        };
        /**
         * @description `POST /v1/vms/{id}/idle`: what becomes of a VM that is not used.
         *
         *     In use is a VM in which a command, session, terminal, copy or connection to a port is under way, or
         *     whose guest takes more than a tenth of a processor.
         */
        Idle: {
            /** @description Action then; `pause` if absent. */
            action?: components["schemas"]["AtEnd"];
            /**
             * Format: int32
             * @description Seconds without use.
             */
            after_s: number;
        };
        /**
         * @description Action on a VM whose pages do not become fewer while they are sent ahead.
         * @enum {string}
         */
        IfStuck: "give-up" | "stop" | "slow";
        /** @description A guest image was built, imported or removed. */
        ImageChanged: {
            built?: components["schemas"]["ByteCount"] | null;
        };
        /** @description `POST /v1/images/{name}/commit`: the VM whose disk becomes an image. */
        ImageCommitRequest: {
            /** @description Name or id of a VM that runs, has stopped, or is a checkpoint. */
            vm: string;
        };
        /**
         * Format: uuid
         * @description One immutable page image.
         */
        ImageId: string;
        /**
         * @description Origin of a guest image.
         * @enum {string}
         */
        ImageOrigin: "recipe" | "raw" | "qcow2" | "oci" | "registry" | "dockerfile" | "vm";
        /** @description `POST /v1/images/{name}/pull`: what to make a guest image of. */
        ImagePullRequest: {
            /** @description The image in its registry: `docker.io/library/python:3.12-slim`. */
            reference: string;
            /**
             * Format: int64
             * @description Size of the guest's disk in bytes, whole MiB; made up from what is in the image if absent.
             */
            size?: number | null;
            /**
             * Format: int64
             * @deprecated
             * @description Size in MiB, as it was said before. Not with `size`.
             */
            size_mib?: number | null;
            /** @description True if VMs are to start its entry point when they boot. */
            start?: boolean;
        };
        /** @description A page image: where its bytes are, and what has been read of it. */
        ImageUse: {
            /**
             * @description Pages of data it has in all; the rest are zero and take no space.
             * @default 0
             */
            data: components["schemas"]["PageCount"];
            /**
             * @description Pages of these that hold data: the others are zero and come from nowhere.
             * @default 0
             */
            data_served: components["schemas"]["PageCount"];
            /**
             * @description Pages its own layer does not store because they are elsewhere.
             * @default 0
             */
            deduplicated: components["schemas"]["PageCount"];
            /**
             * Format: int32
             * @description Layers it is made of. Reading costs the same however many there are.
             * @default 0
             */
            layers: number;
            /**
             * @description Pages its own layer stores compressed.
             * @default 0
             */
            packed: components["schemas"]["PageCount"];
            /**
             * @description Bytes these take.
             * @default 0
             */
            packed_bytes: components["schemas"]["ByteCount"];
            /**
             * @description Pages of data it was published with: what it did not have from its
             *     parent.
             * @default 0
             */
            pages: components["schemas"]["PageCount"];
            /**
             * @description Pages served to the kernel so far, for all clones together.
             * @default 0
             */
            pages_served: components["schemas"]["PageCount"];
            /**
             * @description Pages its own layer stores as they are.
             * @default 0
             */
            plain: components["schemas"]["PageCount"];
            /**
             * @description Pages the kernel got before it asked.
             * @default 0
             */
            prefetched: components["schemas"]["PageCount"];
            /**
             * Format: int64
             * @description Requests these were served in.
             * @default 0
             */
            requests: number;
            /**
             * @description Pages of these that it has from the layers below its own.
             * @default 0
             */
            shared: components["schemas"]["PageCount"];
            /**
             * @description Pages its clones asked for, each once.
             * @default 0
             */
            touched: components["schemas"]["PageCount"];
            /**
             * Format: int32
             * @description Open files on it.
             * @default 0
             */
            users: number;
        };
        /** @description A page image in the pager. */
        ImageView: {
            /** @description The image. */
            id: components["schemas"]["ImageId"];
            parent?: components["schemas"]["ImageId"] | null;
            /** @description Use of the image. */
            usage: components["schemas"]["ImageUse"];
        };
        /**
         * @description Source format of an image that is imported. Always said, never guessed from
         *     content: the writer of a disk decides what it looks like.
         * @enum {string}
         */
        ImportFormat: "raw" | "qcow2" | "oci";
        /** @description Progress of a VM's disk on the way to depend on nothing. */
        IndependenceView: {
            /** @description Bytes of its disk that are copied; 0 before that has begun. */
            copied: components["schemas"]["ByteCount"];
            /** @description True if its disk is its own files, over nothing. */
            independent: boolean;
            /** @description Reason why the last attempt failed; there will be another. */
            problem?: string | null;
            /** @description Bytes of its disk. */
            total: components["schemas"]["ByteCount"];
            /** @description True if it is to be: the files below are copied, or will be when it runs. */
            wanted: boolean;
        };
        /** @description An invitation. It is good for one node, once. */
        Invitation: {
            /**
             * Format: int64
             * @description Seconds for which it holds.
             */
            expires_s: number;
            /** @description Token for `forkyardd --join`. */
            token: string;
        };
        /** @description `POST /v1/nodes`: invite a host to become a node. */
        InviteRequest: {
            /**
             * Format: int64
             * @description Seconds within which it must join: a week at most.
             */
            expires_s: number;
        };
        /** @description Data that makes a host a node. */
        Joined: {
            /** @description The cluster's authority, in PEM. */
            authority: string;
            /** @description The node's certificate, in PEM, signed by it. */
            certificate: string;
            /** @description Addresses of the cluster's etcd. */
            etcd: string[];
        };
        /**
         * @description `POST /v1/join`: a host that was invited wants to become a node. It is let
         *     in by the invitation, not by a token.
         */
        JoinRequest: {
            /** @description Address at which other nodes reach its API. */
            api: string;
            /** @description Id of the invitation. */
            invitation: string;
            /** @description Public key: a point of P-256, uncompressed, base64. */
            key: string;
            /** @description Name that the node is to have. */
            name: components["schemas"]["NodeName"];
            /** @description Address at which its pager will offer page images to them. */
            pages: string;
            /** @description Secret of the invitation. */
            secret: string;
            /** @description End of the tunnels that families' networks go through. */
            tunnel: string;
        };
        /**
         * @description Command of a guest that goes on without a client: `GET /v1/vms/{id}/sessions`.
         *
         *     The guest's agent keeps it, so a daemon that dies changes nothing, and clones have it, too. The
         *     last [`KeptCommand::OUTPUT`] bytes of its output are kept; so are the last
         *     [`KeptCommand::ENDED`] commands that have ended.
         */
        KeptCommand: {
            /** @description Program and arguments, cut off after [`KeptCommand::ARGV`] bytes. */
            argv: string[];
            /**
             * Format: int32
             * @description Clients that are attached.
             */
            attached: number;
            exit?: components["schemas"]["ExitStatus"] | null;
            /**
             * Format: int32
             * @description Bytes of output that are kept.
             */
            kept: number;
            /**
             * Format: int64
             * @description Bytes of output that had to go.
             */
            lost: number;
            /**
             * Format: int32
             * @description Process id, by which the command is known.
             */
            pid: number;
            /**
             * Format: int64
             * @description Seconds since 1970, by the guest's clock, at which it was started.
             */
            started: number;
            /** @description Label of the command. */
            tag?: string | null;
            /** @description True if it has a terminal. */
            tty: boolean;
            /** @description Working directory, if it was started with one. */
            workdir?: string | null;
        };
        /** @description `POST /v1/vms/{id}/labels`: all the labels that a VM is to have. */
        Labels: {
            [key: string]: string;
        };
        /** @description Events that the reader has missed. */
        Lagged: {
            /**
             * Format: int64
             * @description Number of events, of all kinds; none: not known, since they were of an earlier stream.
             */
            missed?: number | null;
        };
        /** @description A VM that goes on after it has moved. */
        Landed: {
            /**
             * Format: int64
             * @description From the request until its user code was let go, in microseconds; 0 if that is long ago.
             */
            took_us: number;
            /** @description The VM. */
            vm: components["schemas"]["VmView"];
        };
        /** @description Something found on the host that no record accounts for. */
        Leftover: {
            /**
             * @description Kind of the resource: `process`, `tap`, `bridge`, `cgroup`, `mount`,
             *     `image`, `file`.
             */
            kind: string;
            /** @description Name, path or process id. */
            name: string;
            /** @description True if it was removed; `doctor` without `--repair` removes nothing. */
            removed: boolean;
        };
        /** @description `POST /v1/vms/{id}/lifetime`: how long from now on a VM is wanted. */
        Lifetime: {
            action?: components["schemas"]["AtEnd"] | null;
            /**
             * Format: int32
             * @description Seconds from now.
             */
            ttl_s: number;
        };
        /**
         * @description `PUT /v1/links/{host}/budget`: budget of the link to another host, for blocks of volumes that nothing waits
         *     for. What is waited for is sent at once, and counts.
         */
        LinkBudget: {
            daily?: components["schemas"]["ByteCount"] | null;
            /**
             * Format: double
             * @description Money for a day, in the same currency.
             */
            money?: number | null;
            /**
             * Format: double
             * @description Price of 10^9 bytes, in any currency.
             */
            price?: number | null;
            rate?: components["schemas"]["BitRate"] | null;
        };
        /** @description Link to another host. */
        LinkView: {
            /** @description Budget. */
            budget: components["schemas"]["LinkBudget"];
            daily_bytes?: components["schemas"]["ByteCount"] | null;
            /** @description Host, as it is called here. */
            host: string;
            /** @description Bytes of volumes' blocks that were sent today at that host's request. */
            sent_today: components["schemas"]["ByteCount"];
            /**
             * Format: int64
             * @description Seconds until the day's budget is there again, if it is used up.
             */
            waits_s?: number | null;
        };
        /** @description A VM, and on which node it is. */
        ListedVm: components["schemas"]["VmView"] & {
            /** @description True if that node is lost, and the VM with it for as long. */
            lost?: boolean;
            node?: components["schemas"]["NodeName"] | null;
        };
        /** @description An Ethernet address: its six bytes. */
        Mac: string;
        /**
         * Format: int32
         * @description Place of a VM in its family: 0 for the one that booted, then 1, 2, …, in
         *     the order in which clones were promised. Never reused within a family; the
         *     VM's address and MAC follow from it.
         */
        Member: number;
        /** @description `POST /v1/vms/{vm}/migrate`: move a running VM to another host. */
        MigrateRequest: {
            /**
             * Format: int64
             * @description Longest time that pages are sent ahead, in ms; no limit if absent.
             */
            deadline_ms?: number | null;
            /** @description Part of the volumes that are its disks that is sent before it moves. */
            disk?: components["schemas"]["DiskTransfer"];
            /**
             * @description Action if the guest writes pages as fast as they are sent, or the
             *     deadline passes.
             */
            if_stuck?: components["schemas"]["IfStuck"];
            keep_copy?: components["schemas"]["VmName"] | null;
            /**
             * Format: int32
             * @description Longest time that the guest may stand still, in ms; one and a half round trips and 100 ms
             *     if absent. Pages are sent ahead until what is left takes no longer, as far as can be
             *     told.
             */
            max_gap_ms?: number | null;
            /** @description Host it moves to: a node of the cluster, or a peer by name. */
            to: string;
            /** @description Other VMs of the host that move with it, as one: all of them go on there, or all here. */
            together?: string[];
        };
        /** @description Result of a migration. */
        MigrateResponse: {
            /** @description Reason why the checkpoint that was asked for was not kept, though the VM has moved. */
            no_copy?: string | null;
            /** @description Account of the time. */
            report: components["schemas"]["MigrationReport"];
            /** @description The VMs that moved with it, in the order in which they were named. */
            together?: components["schemas"]["MigrateResponse"][];
            /** @description The VM, where it is now. */
            vm: components["schemas"]["VmView"];
        };
        /** @description A VM goes on at another host, or stays here. */
        MigrationOver: {
            /**
             * Format: int64
             * @description Time until that host had answered that it goes on there, in microseconds; none: it stays here, or
             *     that is not known yet.
             */
            gap_us?: number | null;
            /** @description Host that it was to move to. */
            to: string;
            /** @description Reason for which it stays, or for which nothing is known. */
            why?: string | null;
        };
        /**
         * @description Phase of a migration.
         * @enum {string}
         */
        MigrationPhase: "copying" | "converging" | "handing_over";
        /** @description A VM that leaves this host has come so far. */
        MigrationReached: {
            /**
             * Format: int64
             * @description Time that the guest would stand still if it were stopped now, in microseconds, once that is known.
             */
            gap_us?: number | null;
            left?: components["schemas"]["PageCount"] | null;
            /** @description Phase that it has reached. */
            phase: components["schemas"]["MigrationPhase"];
            /**
             * Format: int32
             * @description Rounds that were sent.
             */
            rounds: number;
            /** @description Host that it moves to. */
            to: string;
        };
        /**
         * @description Account of the time of a migration. Times are in microseconds, by the clock of the host that
         *     the VM left.
         */
        MigrationReport: {
            /**
             * Format: int64
             * @description Blocks of its volumes sent ahead, of 4096 bytes each; 0 if it has none.
             */
            blocks_ahead?: number;
            /**
             * Format: int64
             * @description Blocks sent while the guest stood still.
             */
            blocks_last?: number;
            /**
             * Format: int64
             * @description Blocks left here, which the other host fetches once it has the VM.
             */
            blocks_left?: number;
            /**
             * Format: int64
             * @description From the guest's stop here until this host was told that it goes on there: half a round
             *     trip longer than it stood still.
             */
            gap_us: number;
            /**
             * Format: int64
             * @description Part of the gap from there until the answer.
             */
            hand_over_us: number;
            /**
             * Format: int64
             * @description Time as the other host measured it: pages that came last, devices loaded, user code let go.
             */
            land_us: number;
            /** @description Pages of memory and disk sent ahead. */
            pages_ahead: components["schemas"]["PageCount"];
            /** @description Pages sent while the guest stood still. */
            pages_last: components["schemas"]["PageCount"];
            /**
             * @description Pages of memory and disk that the other host had already: from when the VM was there, or from
             *     another that moves with it.
             */
            pages_there?: components["schemas"]["PageCount"];
            /**
             * Format: int64
             * @description Until all of a first copy was there, and a machine that waits for the rest.
             */
            prepare_us: number;
            /**
             * Format: int64
             * @description Time from the first to the last of them that went on at the other host, by its clock.
             */
            resume_spread_us?: number;
            /**
             * Format: int32
             * @description Copies of what had been written meanwhile, until little was left.
             */
            rounds: number;
            /**
             * Format: int64
             * @description Time they took.
             */
            rounds_us: number;
            /**
             * Format: int32
             * @description Part of the time for which its vCPUs ran in the end, in percent, if they were slowed.
             */
            slowed_to_percent?: number | null;
            /**
             * Format: int64
             * @description Time from the stop of the first to that of the last of VMs that moved together.
             */
            spread_us?: number;
            /**
             * Format: int64
             * @description Part of the gap until all that was left had been copied here.
             */
            stop_us: number;
            /**
             * Format: int64
             * @description From the request to the end.
             */
            total_us: number;
        };
        /** @description `POST /v1/volumes/{name}/mirror`: say which other hosts every flush of a volume waits for. */
        MirrorVolume: {
            /** @description Action while one of them is away. */
            away?: components["schemas"]["WhenMirrorAway"];
            /** @description Hosts; none ends it. Copies that they have stay there. */
            hosts?: string[];
        };
        /** @description `POST /v1/volumes/{name}/move`: move a volume that no VM has to another host. */
        MoveVolume: {
            /** @description Part of it that is sent before it is at home there. */
            disk?: components["schemas"]["DiskTransfer"];
            /** @description Host, as it is called here, or its address. */
            to: string;
        };
        /**
         * @description Rights of a family's VMs beyond talking to each other. Its founder's owner
         *     decides; clones have it from there.
         */
        NetworkPolicy: {
            /**
             * @description All that may be reached, networks and host names; if empty, whatever is no private network.
             * @default []
             */
            allow: string[];
            /**
             * @description Destinations that may not be reached, even if it is allowed: names are asked of no resolver there, either.
             * @default []
             */
            deny: string[];
            /**
             * @description Way to the outside, if there is one.
             * @default none
             */
            out: components["schemas"]["WayOut"];
            /**
             * @description Ports of the host that lead to the founder, and addresses of its own.
             * @default []
             */
            publish: string[];
            /** @default null */
            rate: components["schemas"]["BitRate"] | null;
        };
        /**
         * @description The key by which hosts of a family know each other's news of where its members are: 32 bytes,
         *     base64. Its debug output hides it.
         */
        NewsSecret: string;
        /** @description A node stands otherwise than before. */
        NodeChanged: {
            from?: components["schemas"]["NodeState"] | null;
            to?: components["schemas"]["NodeState"] | null;
        };
        /**
         * @description Name of a node: 1 to 63 lower-case letters, digits and inner hyphens, as of
         *     a host (RFC 1123). Its certificate bears it.
         */
        NodeName: string;
        /**
         * @description State of a node.
         * @enum {string}
         */
        NodeState: "active" | "draining" | "lost";
        /** @description `GET /v1/nodes`: a node as the cluster knows it. */
        NodeView: {
            /** @description Address of the API, by TLS. */
            api: string;
            /** @description True for the node that answers. */
            here: boolean;
            /**
             * Format: int64
             * @description Seconds since 1970 at which it joined.
             */
            joined: number;
            /** @description Name of the node. */
            name: components["schemas"]["NodeName"];
            /** @description Room that the node offers. */
            offers: components["schemas"]["Room"];
            /** @description Address at which its pager offers page images to other nodes. */
            pages: string;
            /** @description State of the node. */
            state: components["schemas"]["NodeState"];
            /** @description Room that VMs and reservations take of that. */
            taken: components["schemas"]["Room"];
            /** @description End of the tunnels that families' networks go through. */
            tunnel: string;
            /**
             * Format: int32
             * @description VMs it was last known to have.
             */
            vms: number;
        };
        /** @description Reason why a command could not be started. */
        NotStarted: {
            /**
             * Format: int32
             * @description As shells report it: 127 if there is no such program, else 126.
             */
            code: number;
            /** @description Reason, with the program's name. */
            message: string;
        };
        /** @description Occurrences that events tell of, each with its data. */
        Occurrence: {
            /** @description A VM is listed from here on: it boots, or it is a clone that runs. */
            vm_created: components["schemas"]["VmCreated"];
        } | {
            /** @description A VM is in another state. */
            vm_changed: components["schemas"]["VmChanged"];
        } | {
            /** @description A VM does not answer, or answers again. */
            vm_silence: components["schemas"]["VmSilence"];
        } | {
            /** @description A VM is listed no more. */
            vm_removed: components["schemas"]["VmRemoved"];
        } | {
            /** @description A fork has begun. */
            fork_begun: components["schemas"]["ForkBegun"];
        } | {
            /** @description This host has come so far with the clones of a fork. */
            fork_reached: components["schemas"]["ForkReached"];
        } | {
            /** @description A fork is over: each clone runs or has failed. */
            fork_over: components["schemas"]["ForkOver"];
        } | {
            /** @description A VM that leaves this host has come so far. */
            migration_reached: components["schemas"]["MigrationReached"];
        } | {
            /** @description A VM goes on at another host, or stays here. */
            migration_over: components["schemas"]["MigrationOver"];
        } | {
            /** @description A ticket is at another stage. */
            ticket_changed: components["schemas"]["TicketChanged"];
        } | {
            /** @description A checkpoint is on disk. */
            checkpoint_made: components["schemas"]["CheckpointMade"];
        } | {
            /** @description A checkpoint is no more. */
            checkpoint_removed: components["schemas"]["CheckpointRemoved"];
        } | {
            /** @description A guest image was built, imported or removed. */
            image_changed: components["schemas"]["ImageChanged"];
        } | {
            /** @description A node has joined the cluster, stands otherwise than before, or was removed. */
            node_changed: components["schemas"]["NodeChanged"];
        } | {
            /** @description A page image has come from another host, or what was left of it is lost. */
            transfer_over: components["schemas"]["TransferOver"];
        } | {
            /**
             * @description Events before this one are not in the stream any more: the reader was too slow, or
             *     asked too late.
             */
            lagged: components["schemas"]["Lagged"];
        };
        /**
         * @description Stretches of pages in order, as a text that is a tenth as long as a list of them: the distance
         *     from the last one and the length of each in LEB128, base64.
         */
        PackedRuns: string;
        /**
         * Format: int64
         * @description A number of pages.
         */
        PageCount: number;
        /**
         * @description Order in which the pages of an image come and the clones that lie over it are let go.
         * @enum {string}
         */
        PageOrder: "on_demand" | "settle_first";
        /** @description Pages of an image, one after the other. */
        PageRun: {
            /**
             * Format: int64
             * @description The first.
             */
            first: number;
            /** @description Number of pages. */
            pages: components["schemas"]["PageCount"];
        };
        /**
         * @description The key by which page images of one fork are served to other hosts: 32
         *     bytes, base64. Its debug output hides it.
         */
        PageSecret: string;
        /**
         * @description Relation of a domain's vCPUs: whether they work on one thing and wait for
         *     each other.
         * @enum {string}
         */
        Parallel: "yes" | "no";
        /** @description `POST /v1/peer/activations`: make VMs of a substrate of another host. */
        PeerActivateRequest: {
            /** @description The activation. */
            activation: components["schemas"]["ForkId"];
            /** @description State of its devices and CPUs, packed by zstd, base64. */
            devices: string;
            /** @description Disk as it was docked, with all that it lay over. */
            disk: components["schemas"]["RemotePages"];
            /** @description The key they are served by. */
            key: components["schemas"]["PageSecret"];
            /** @description Memory of the VMs wanted: as it was docked, and zeros behind that if they are larger. */
            memory: components["schemas"]["RemotePages"];
            over?: components["schemas"]["PeerOver"] | null;
            /** @description Address at which its host's pager serves these. */
            pager: string;
            /** @description Properties of each of them, as they were asked for. */
            request: components["schemas"]["ActivateRequest"];
            /** @description The substrate. */
            substrate: components["schemas"]["PeerSubstrate"];
            /**
             * Format: int32
             * @description [`PeerActivateRequest::VERSION`] of the host that has the substrate.
             */
            version: number;
            /** @description The VMs wanted. */
            vms: components["schemas"]["PeerFounder"][];
        };
        /** @description A question which CPU guests are given. */
        PeerCpu: {
            /** @description Accelerator: `kvm` or `tcg`. */
            accel: string;
        };
        /** @description A data disk of a VM that is about to move. */
        PeerDisk: {
            /** @description Serial number of the disk. */
            name: components["schemas"]["VmName"];
            /** @description Snapshot of that, if the VM only reads it. */
            shared?: string | null;
            /** @description Volume that it is, by its name there. */
            volume: components["schemas"]["VmName"];
        };
        /** @description End of a clone. */
        PeerEnd: {
            /**
             * Format: int32
             * @description Number in the ticket.
             */
            number: number;
            /** @description Reported ends of its other processes. */
            others: components["schemas"]["PeerProcessEnd"][];
            /**
             * Format: int32
             * @description The status it gave to `exit`, if it did.
             */
            status?: number | null;
        };
        /** @description A migration that the host the VM leaves knows no more of, or gives up. */
        PeerEndMigration: {
            /** @description The migration. */
            migration: components["schemas"]["ForkId"];
            /** @description The VM. */
            vm: components["schemas"]["VmId"];
        };
        /** @description Announcement that a VM is about to stand still. */
        PeerExpect: {
            /** @description End of tunnels of the host that it leaves. */
            from: string;
            /**
             * Format: int32
             * @description Rank of the news that it moves, among all news of its place.
             */
            generation: number;
            /** @description The migration. */
            migration: components["schemas"]["ForkId"];
        };
        /**
         * @description `POST /v1/peer/families`: where the places of families are, as a host tells
         *     those that it lent some of them.
         */
        PeerFamiliesRequest: {
            /** @description The families. */
            families: components["schemas"]["FamilyNews"][];
        };
        /** @description Answer of a host to that. */
        PeerFamiliesResponse: {
            /** @description One entry a family that it was told of, in their order. */
            families: components["schemas"]["FamilyStanding"][];
        };
        /** @description `POST /v1/peer/clones`: make clones of an instant of a VM on another host. */
        PeerForkRequest: {
            /**
             * Format: int32
             * @description Clones wanted.
             */
            count: number;
            /**
             * Format: int32
             * @description Number of the first of them among the clones of the fork, 1 and up.
             */
            first: number;
            /** @description The instant. */
            handout: components["schemas"]["Handout"];
            /** @description Paths in the guest that they do not inherit. */
            scrub?: string[];
            /** @description True if all pages are to be fetched in the background. */
            settle?: boolean;
            ticket?: components["schemas"]["PeerTicket"] | null;
        };
        /** @description Results of clones on another host. */
        PeerForkResponse: {
            /** @description One entry a clone wanted. */
            clones: components["schemas"]["CloneResult"][];
            /** @description Account of the time there. */
            report: components["schemas"]["ForkReport"];
            /**
             * @description Pages of memory that they touched until they were ready, in that order; none if they came on
             *     demand, for then they were asked for.
             */
            touched?: components["schemas"]["PageRun"][];
        };
        /** @description A VM that is to be made of a substrate. */
        PeerFounder: {
            /**
             * @description Id of the VM, drawn by the host that has the substrate: by it the VM is known whatever becomes
             *     of the answer.
             */
            id: components["schemas"]["VmId"];
            /** @description Name of the VM. */
            name: components["schemas"]["VmName"];
        };
        /** @description Images that a VM lies over which is about to move. */
        PeerKept: {
            /** @description Images of the VM. */
            images: components["schemas"]["ImageId"][];
            /** @description The VM. */
            vm: components["schemas"]["VmId"];
        };
        /** @description The last of a VM that stands still. */
        PeerLand: {
            /**
             * @description Numbers of the commands in it that this host's clients follow, and will follow by
             *     `GET /v1/peer/migrations/{migration}/commands`.
             */
            commands?: number[];
            /**
             * @description State of its devices and CPUs, packed by zstd with that of the first copy as the dictionary,
             *     base64.
             */
            devices: string;
            disk?: components["schemas"]["Delta"] | null;
            /** @description Memory as it is now. */
            memory: components["schemas"]["Delta"];
            /** @description The migration. */
            migration: components["schemas"]["ForkId"];
            /** @description The snapshots of volumes that are its disks: it goes on once those have come. */
            snapshots?: components["schemas"]["VolumeAt"][];
        };
        /** @description Answer of a host to a step. */
        PeerMigrated: "here" | {
            /** @description That volume can come, by what differs from this snapshot, which is here, or all of it. */
            since: string | null;
        } | {
            /** @description Guests are given this CPU here. */
            cpu: components["schemas"]["GuestCpu"];
        } | {
            /** @description Those images of the VM are here, and stay for a while. */
            kept: components["schemas"]["ImageId"][];
        } | {
            /** @description Goes on here. */
            landed: components["schemas"]["Landed"];
        } | {
            /** @description Go on here, in the order in which they were named. */
            landed_together: components["schemas"]["Landed"][];
        } | "ended";
        /**
         * @description `POST /v1/peer/migrations`: one step of a VM's way to the host that is asked, by the host
         *     that it leaves.
         */
        PeerMigration: {
            /**
             * @description Say what is there of a volume that is about to come, and keep its name for it. Its
             *     snapshots come by `PUT /v1/peer/migrations/{migration}/volume`.
             */
            volume: components["schemas"]["PeerVolume"];
        } | {
            /** @description Say which CPU guests are given there. */
            cpu: components["schemas"]["PeerCpu"];
        } | {
            /** @description Say which images are still there of a VM that has been there. */
            kept: components["schemas"]["PeerKept"];
        } | {
            /**
             * @description Fetch a first copy, and make a machine that waits for the rest. Answered when all of it is
             *     there.
             */
            prepare: components["schemas"]["PeerPrepare"];
        } | {
            /** @description Fetch what has been written since. Answered when it is there. */
            round: components["schemas"]["PeerRound"];
        } | {
            /**
             * @description The guest is about to stand still there: frames for it wait at its port here, and what that
             *     host passes on is taken.
             */
            expect: components["schemas"]["PeerExpect"];
        } | {
            /** @description The guest stands still there: fetch what is left, and let it go on here. */
            land: components["schemas"]["PeerLand"];
        } | {
            /** @description Several guests stand still there: fetch what is left, and let all of them go on here, or none. */
            land_together: components["schemas"]["PeerLand"][];
        } | {
            /** @description Give it up, unless it goes on here: it never will, once this is answered so. */
            end: components["schemas"]["PeerEndMigration"];
        };
        /** @description Difference of an image from one of the same size. */
        PeerOver: {
            /** @description Pages that differ, in order. */
            changed: components["schemas"]["PageRun"][];
            /** @description The other image. */
            image: components["schemas"]["ImageId"];
        };
        /** @description A VM that is about to move. */
        PeerPrepare: {
            /** @description Other disks of the VM, of which a snapshot has come each. */
            data?: components["schemas"]["PeerDisk"][];
            disk?: components["schemas"]["ImageId"] | null;
            /** @description An instant of it. */
            first: components["schemas"]["Handout"];
            /** @description Final id of its memory. */
            memory: components["schemas"]["ImageId"];
            /** @description Images of that which come by what they differ in from one that is there. */
            over?: components["schemas"]["Delta"][];
            /** @description Properties of the VM, apart from that. */
            vm: components["schemas"]["HandoutVm"];
            volume?: components["schemas"]["VmName"] | null;
        };
        /** @description End of one process of a clone. */
        PeerProcessEnd: {
            /**
             * Format: int32
             * @description Number in the ticket.
             */
            id: number;
            /**
             * Format: int32
             * @description Status, if it is known.
             */
            status?: number | null;
        };
        /** @description One clone that was promised. */
        PeerPromise: {
            /** @description Place in the family, among those that were lent. */
            member: components["schemas"]["Member"];
            /**
             * Format: int32
             * @description Number in the ticket.
             */
            number: number;
            /**
             * Format: int32
             * @description Processes in it that have numbers.
             */
            processes: number;
            /**
             * Format: int32
             * @description vCPUs it is to have online.
             */
            vcpus: number;
        };
        /** @description Memory that was written since it was sent. */
        PeerRound: {
            /** @description Memory as it is now. */
            memory: components["schemas"]["Delta"];
            /** @description The migration. */
            migration: components["schemas"]["ForkId"];
        };
        /** @description A substrate as another host must know it. */
        PeerSubstrate: {
            /** @description Accelerator: `kvm` or `tcg`. */
            accel: string;
            /**
             * Format: int32
             * @description Version of their messages that its agent speaks, if that was noted.
             */
            agent?: number | null;
            /** @description Memory that its guest found when it booted. */
            booted: components["schemas"]["ByteCount"];
            cpu?: components["schemas"]["GuestCpu"] | null;
            /** @description Page image of the memory that was docked, which a host may have by a `pull`. */
            docked: components["schemas"]["ImageId"];
            /** @description The program that saved its state. */
            engine: string;
            /** @description Guest image that its VM, or its ancestor, booted from. */
            image: string;
            /** @description Memory that was docked. */
            memory: components["schemas"]["ByteCount"];
            /** @description Name of the substrate. */
            name: components["schemas"]["VmName"];
            /** @description True if guests of its host report which of their pages are free. */
            page_reporting: boolean;
            /**
             * Format: int32
             * @description Number of vCPUs that were docked.
             */
            vcpus: number;
        };
        /** @description Clones that a guest was promised by a ticket: as many as are wanted. */
        PeerTicket: {
            /** @description Promises of the ticket. */
            clones: components["schemas"]["PeerPromise"][];
            /** @description Address that the clones are told is their parent's. */
            home: string;
            /** @description The ticket. */
            id: components["schemas"]["TicketId"];
            /** @description The VM it was granted to. */
            owner: components["schemas"]["VmId"];
            request?: components["schemas"]["RequestId"] | null;
        };
        /**
         * @description `POST /v1/peer/ticket`: how the clones of a ticket ended that were made on another
         *     host.
         */
        PeerTicketRequest: {
            /** @description The clones whose ends are known by now. */
            known: number[];
            /** @description True if this is the last request. */
            over: boolean;
            /** @description The ticket. */
            ticket: components["schemas"]["TicketId"];
            /**
             * Format: int32
             * @description Time to wait for another, in ms; ten seconds at most.
             */
            wait_ms: number;
        };
        /** @description Answer of a host to that. */
        PeerTicketResponse: {
            /** @description The clones that have ended, all of them. */
            ended: components["schemas"]["PeerEnd"][];
            /** @description True if the host knows that ticket. */
            known: boolean;
        };
        /** @description A volume that is a disk of a VM that is about to move. */
        PeerVolume: {
            /** @description Accelerator: `kvm` or `tcg`. */
            accel?: string;
            cpu?: components["schemas"]["GuestCpu"] | null;
            /** @description The migration. */
            migration: components["schemas"]["ForkId"];
            /** @description Name there. */
            name: components["schemas"]["VmName"];
            /** @description Ports of the host that lead to it. */
            publish?: string[];
            /** @description Snapshots that were sent to other hosts, the oldest first. */
            sent: string[];
            term?: components["schemas"]["Term"] | null;
            /** @description Identity of the volume, the same on every host: 32 hexadecimal digits. */
            volume: string;
        };
        /** @description Answer to a [`PeerVolumeStep`]. */
        PeerVolumeAnswer: {
            /** @description Name kept for the volume. */
            prepared: components["schemas"]["PeerVolumePrepared"];
        } | {
            /** @description At home there: term in which it came to be. */
            landed: components["schemas"]["Term"];
        } | "ended" | {
            /** @description True if the volume is awaited there. */
            awaits: boolean;
        } | {
            /** @description Account of a move that was asked for. */
            given: components["schemas"]["VolumeMoved"];
        };
        /** @description A volume that does not come, or has come. */
        PeerVolumeEnd: {
            /** @description The move. */
            migration: components["schemas"]["ForkId"];
            /** @description Name of the volume. */
            name: components["schemas"]["VmName"];
        };
        /** @description A volume that is wanted at another host. */
        PeerVolumeGive: {
            /** @description Part of it that is sent before it is at home there. */
            disk?: components["schemas"]["DiskTransfer"];
            /** @description The move. */
            migration: components["schemas"]["ForkId"];
            /** @description Name of the volume. */
            name: components["schemas"]["VmName"];
            /** @description Node that it goes to. Among hosts that are no nodes, the one that awaits it is looked for. */
            to?: string | null;
        };
        /** @description A volume that has come. */
        PeerVolumeLand: {
            /** @description The move. */
            migration: components["schemas"]["ForkId"];
            /** @description Name of the volume. */
            name: components["schemas"]["VmName"];
            /** @description Snapshot that it goes on from. */
            snapshot: string;
            /** @description Term in which it is at home at the host that it leaves. */
            term: components["schemas"]["Term"];
        };
        /** @description A volume that is about to come. */
        PeerVolumePrepare: {
            /** @description Name of that host, as it calls itself. */
            from: string;
            /** @description Identity of the volume, the same on every host: 32 hexadecimal digits. */
            id: string;
            /** @description The move. */
            migration: components["schemas"]["ForkId"];
            /** @description Name of the volume. */
            name: components["schemas"]["VmName"];
            /** @description Snapshots of the volume, the oldest first. */
            snapshots: string[];
            /** @description Term in which it is at home at the host that it leaves. */
            term: components["schemas"]["Term"];
        };
        /** @description State of a volume at the host that it comes to. */
        PeerVolumePrepared: {
            /** @description Snapshots of the user that are there already. */
            has: string[];
            /** @description Snapshot that both hosts have, of which the difference is enough. */
            since?: string | null;
        };
        /** @description `POST /v1/peer/volumes`: take a step of a volume's way from host to host. */
        PeerVolumeStep: {
            /**
             * @description Say what is there of a volume that is about to come, and keep its name for it. Its snapshots come
             *     by `PUT /v1/peer/migrations/{migration}/volume`. Nothing is active there.
             */
            prepare: components["schemas"]["PeerVolumePrepare"];
        } | {
            /** @description All of it is there: have it at home there from now on. */
            land: components["schemas"]["PeerVolumeLand"];
        } | {
            /** @description Give it up, unless it is at home there: it never will be by this move, once this is answered so. */
            end: components["schemas"]["PeerVolumeEnd"];
        } | {
            /** @description Say whether a volume is awaited there by this move. */
            awaits: components["schemas"]["ForkId"];
        } | {
            /** @description Move a volume to the host that awaits it by this move. Answered at the end. */
            give: components["schemas"]["PeerVolumeGive"];
        };
        /**
         * @description Measure that VMs' shares are in proportion to.
         * @enum {string}
         */
        PoliceBy: "vm" | "vcpu";
        /** @description A VM that the police has capped. */
        PoliceCap: {
            /** @description Name of the VM. */
            guest: string;
            /**
             * Format: int32
             * @description Per cent of a CPU that it is capped to.
             */
            percent: number;
            /**
             * Format: int32
             * @description Process of its QEMU, with which the cap ends.
             */
            pid: number;
            /** @description Id of the VM. */
            vm: components["schemas"]["VmId"];
        };
        /** @description A VM that does not yield, and what shows it, in CPUs. */
        PoliceFinding: {
            /**
             * Format: double
             * @description Demand when the last trial began that it did not answer.
             */
            before: number;
            /**
             * Format: int32
             * @description Per cent of a CPU that it was capped to by this finding; none if it was not.
             */
            capped_percent?: number | null;
            /**
             * Format: double
             * @description Least demand before the trial was over.
             */
            fell_to: number;
            /** @description Name of the VM. */
            guest: string;
            /**
             * Format: int32
             * @description Answers missed on end.
             */
            missed: number;
            /**
             * Format: int64
             * @description Number of the finding, from 1 on.
             */
            number: number;
            /** @description Reason for which it could not be capped. */
            problem?: string | null;
            /**
             * Format: double
             * @description Fair share meanwhile, on average.
             */
            share: number;
            /**
             * Format: double
             * @description Use meanwhile, on average.
             */
            used: number;
            /** @description Id of the VM. */
            vm: components["schemas"]["VmId"];
        };
        /** @description `PUT /v1/friendly/police`: which VMs of the host are to be named, and capped. */
        PoliceSettings: {
            /**
             * @description Measure that VMs' shares are in proportion to.
             * @default vm
             */
            by: components["schemas"]["PoliceBy"];
            /**
             * @description Cap the VMs that are named to their share of CPU time, until the police ends.
             * @default false
             */
            enforce: boolean;
            /**
             * Format: int32
             * @description Seconds after which it ends by itself, unless it is put again before; none: it goes on.
             * @default null
             */
            for_s: number | null;
            /**
             * Format: double
             * @description Seconds between samples.
             * @default 2
             */
            interval_s: number;
            /**
             * Format: double
             * @description Part of what other VMs want that they have to wait for, or more, for one to be asked to
             *     want less.
             * @default 0.5
             */
            waiting: number;
        };
        /** @description State of the police of a host. */
        PoliceState: {
            /** @description VMs that are capped. */
            capped: components["schemas"]["PoliceCap"][];
            /** @description VMs that were named, the last hundred at most, in the order of their numbers. */
            named: components["schemas"]["PoliceFinding"][];
            /** @description The settings. */
            settings: components["schemas"]["PoliceSettings"];
            /**
             * Format: int32
             * @description VMs in the last sample.
             */
            watched: number;
        };
        /**
         * @description `POST /v1/vms/{id}/published`: more ports of the host that are to lead to a VM, and more
         *     addresses of its own.
         */
        PublishRequest: {
            /**
             * @description The ports, `[ADDRESS:]PORT:GUESTPORT[/udp]`, and the addresses, `ADDRESS/routed` or
             *     `ADDRESS/bridge`: all of them or none.
             */
            ports: string[];
        };
        /**
         * @description `POST /v1/substrates/pull`: bring a substrate in from a folder of the host or an object store. One of
         *     both is named.
         */
        PullRequest: {
            /** @description Absolute path of the substrate's own folder. */
            folder?: string | null;
            name?: components["schemas"]["VmName"] | null;
            /** @description Address of the substrate in a store: that of the store, `/`, its name. */
            store?: string | null;
            /** @description Public key of the host that must have signed it, beside this host itself. */
            trust?: string | null;
            /** @description Accept any signature, or none. For folders. */
            unsigned?: boolean;
        };
        /**
         * @description `POST /v1/substrates/{name}/push`: put a substrate into a folder of the host or an object store, for
         *     other hosts. One of both is named.
         */
        PushRequest: {
            /** @description Absolute path of the folder. In it the substrate is a folder of its own name. */
            folder?: string | null;
            /** @description Address of the store: `file:///FOLDER` or `s3://BUCKET/PREFIX`. It is sent what it has not. */
            store?: string | null;
            /** @description Have what the store has already read, and sent again if it is damaged there. */
            verify?: boolean;
        };
        /** @description Result of a push. */
        PushResponse: components["schemas"]["SubstrateView"] & {
            /** @description Bytes that were sent to an object store; 0 for a folder. */
            sent?: components["schemas"]["ByteCount"];
            /** @description Bytes that the store had already, of this or of other substrates. */
            shared?: components["schemas"]["ByteCount"];
        };
        /** @description `POST /v1/quotas/{user}`: what a user's VMs may take of the whole cluster. */
        QuotaRequest: {
            /**
             * Format: int32
             * @description vCPUs; no limit if absent.
             */
            vcpus?: number | null;
        };
        /** @description `GET /v1/quotas`: what a user has and may have. */
        QuotaView: {
            /**
             * Format: int32
             * @description vCPUs of the user's VMs and reservations.
             */
            taken: number;
            /** @description The user: the name of the token that the VMs were run with. */
            user: string;
            /**
             * Format: int32
             * @description vCPUs they may have; no limit if absent.
             */
            vcpus?: number | null;
        };
        /** Format: binary */
        Raw: string;
        /** @description A page image on another host. */
        RemotePages: {
            /** @description The image. */
            image: components["schemas"]["ImageId"];
            /** @description Order of pages, by which clones are let go. */
            order?: components["schemas"]["PageOrder"];
            /** @description Size of the image. */
            pages: components["schemas"]["PageCount"];
        };
        /** @description Address and certificate of a daemon that is reached over the network. */
        RemoteView: {
            /**
             * @description `sha256:` and the SHA-256 of its certificate in hexadecimal, which a
             *     client may hold it to (`FORKYARD_CA`).
             */
            fingerprint: string;
            /** @description Address and port it listens on. */
            listen: string;
        };
        /** @description `POST /v1/vms/{id}/rename`: another name for a VM. */
        RenameRequest: {
            /** @description The name, which no other VM has. */
            name: components["schemas"]["VmName"];
        };
        /**
         * Format: uuid
         * @description One request of a guest's program: asking again under the same id, after an
         *     answer was lost, asks for nothing new.
         */
        RequestId: string;
        /** @description `POST /v1/volumes/{name}/resize`: change the size of a volume that no VM has. */
        ResizeVolume: {
            /** @description New size, a multiple of 4096 bytes. What lies beyond a smaller one is lost. */
            size: components["schemas"]["ByteCount"];
        };
        /** @description `POST /v1/vms/{id}/restart-policy`: whether a VM is started again from now on. */
        RestartRequest: {
            /** @description `no`, `always`, `on-failure` or `on-failure:N`. */
            restart: string;
        };
        /** @description Starts of a VM that ended by itself. */
        Restarts: {
            /**
             * Format: int64
             * @description Seconds since 1970 at which the last one succeeded; 0: none has.
             */
            begun: number;
            /**
             * Format: int64
             * @description Seconds since 1970 at which the next is due.
             */
            due?: number | null;
            /**
             * Format: int32
             * @description Starts in a row of which none ran for a minute, with the one that is due.
             */
            tried: number;
        };
        /**
         * @description Room that a node has, or that is taken of it. vCPUs are promised several to
         *     a processor, and memory several times over: clones share most of theirs.
         */
        Room: {
            /** @description Memory of guests. */
            memory: components["schemas"]["ByteCount"];
            /**
             * Format: int32
             * @description vCPUs.
             */
            vcpus: number;
        };
        /** @description Volume that is to be the root disk of a VM. */
        RootVolume: {
            /** @description Encrypt the blocks of one that is made. One that is there and not encrypted is refused. */
            encrypted?: boolean;
            /**
             * @description Name of the volume. One that does not exist is made as a copy of the
             *     image's disk.
             */
            name: components["schemas"]["VmName"];
            size?: components["schemas"]["ByteCount"] | null;
        };
        /** @description `POST /v1/vms`: boot a VM. */
        RunRequest: {
            /** @description Boot it even if a first boot of the image is kept that it could be woken from, and keep none. */
            cold?: boolean;
            /**
             * @description Hosts that it is to be able to move to: nodes of the cluster or peers by name, or `peers` for
             *     all of them. Its CPU has no feature that one of theirs lacks.
             */
            cpu_baseline?: string[];
            /** @description Volumes that are disks of it beside that one. */
            data?: components["schemas"]["DataVolume"][];
            /** @description Environment of every command that is run in it from outside. */
            env?: {
                [key: string]: string;
            };
            idle?: components["schemas"]["Idle"] | null;
            /** @description Image to boot: the name of a recipe. */
            image: string;
            /** @description VM, by name or id, whose family's network it joins, by that family's rights; a network of its own if absent. */
            join?: string | null;
            /**
             * @description A kernel of the user's own: path of a bzImage or vmlinux on the host
             *     with virtio built in or in the image's initramfs.
             */
            kernel?: string | null;
            /** @description Labels for selecting the VM; its clones have them, too. */
            labels?: components["schemas"]["Labels"];
            lifetime?: components["schemas"]["Lifetime"] | null;
            /**
             * Format: int32
             * @description Most clones of its family that may be alive at once, promised ones
             *     included; no limit if absent.
             */
            max_clones?: number | null;
            /**
             * Format: int64
             * @description Memory in bytes, whole MiB; 256 MiB if absent.
             */
            memory?: number;
            /**
             * Format: int64
             * @deprecated
             * @description Memory in MiB, as it was said before. Not with `memory`.
             */
            memory_mib?: number | null;
            name?: components["schemas"]["VmName"] | null;
            /** @description Rights of the VM and its clones on the network. */
            network?: components["schemas"]["NetworkPolicy"];
            /** @description Tells whether it is started again if it ends by itself: `no`, `always`, `on-failure`, `on-failure:N`. */
            restart?: string;
            /** @description Paths in the guest that no clone inherits, unless a fork says so. */
            secrets?: string[];
            /**
             * Format: int32
             * @description Number of vCPUs.
             */
            vcpus?: number;
            volume?: components["schemas"]["RootVolume"] | null;
            /**
             * Format: int32
             * @description Clones to keep warm, so that a fork of that many need not start QEMU.
             */
            warm?: number;
        };
        /**
         * @description SchedLevel of the dispatcher's intervention with a VM.
         * @enum {string}
         */
        SchedLevel: "observe" | "place" | "enforce";
        /**
         * @description By what turns are enforced.
         * @enum {string}
         */
        SchedMeans: "freezer" | "sched-ext";
        /**
         * @description Reason for which a VM is let go for a while.
         * @enum {string}
         */
        SchedPause: "blocks" | "alone";
        /**
         * @description A policy's name.
         * @enum {string}
         */
        SchedPolicy: "rr" | "bvt" | "atropos" | "sedf" | "credit" | "credit2" | "cfs" | "balance" | "procco" | "cpuco" | "sbco" | "speed";
        /** @description `PUT /v1/sched/processes/{pid}`: how the vCPUs of any QEMU of the host are to be scheduled. */
        SchedProcess: {
            /**
             * @description The settings.
             * @default {
             *       "cap": null,
             *       "level": null,
             *       "parallel": null,
             *       "period_us": null,
             *       "policy": null,
             *       "slice_us": null,
             *       "weight": null
             *     }
             */
            settings: components["schemas"]["SchedSettings"];
            /**
             * @description Threads of its vCPUs, in the guest's order; found by their names if absent.
             * @default null
             */
            threads: number[] | null;
        };
        /** @description `PUT /v1/vms/{vm}/sched`: how a VM's vCPUs are to be scheduled. What is absent stays as it is. */
        SchedSettings: {
            /**
             * Format: int32
             * @description Cap in per cent of one CPU; 0 lifts it. Under credit.
             * @default null
             */
            cap: number | null;
            /** @default null */
            level: components["schemas"]["SchedLevel"] | null;
            /** @default null */
            parallel: components["schemas"]["Parallel"] | null;
            /**
             * Format: int64
             * @description The period, in µs.
             * @default null
             */
            period_us: number | null;
            /** @default null */
            policy: components["schemas"]["SchedPolicy"] | null;
            /**
             * Format: int64
             * @description Time reserved for each vCPU, in µs of every period; 0 for none. Under sedf and atropos.
             * @default null
             */
            slice_us: number | null;
            /**
             * Format: int32
             * @description Weight; 256 is usual.
             * @default null
             */
            weight: number | null;
        };
        /** @description State of a host's dispatcher, and of the VMs that it schedules. */
        SchedState: {
            /** @description The CPUs. */
            cpus: components["schemas"]["CpuSched"][];
            /**
             * Format: int32
             * @description The process that lets everything go should the dispatcher die.
             */
            guard: number;
            /** @description By what it is enforced. */
            means?: components["schemas"]["SchedMeans"];
            /**
             * Format: double
             * @description The part of one CPU that the dispatcher itself took in the last second.
             */
            own: number;
            /**
             * Format: int64
             * @description The CPU time it has taken in all, in ns.
             */
            own_ns: number;
            /** @description The policy. */
            policy: components["schemas"]["SchedPolicy"];
            /**
             * Format: int64
             * @description Times it changed the running vCPU, in all.
             */
            switches: number;
            /** @description The VMs. */
            vms: components["schemas"]["VmSched"][];
        };
        /**
         * @description State of a ticket's clone.
         * @enum {string}
         */
        SeatState: "reserved" | "awaited" | "unmade" | "alive" | "ended";
        /** @description Answer to a request for a token: it is shown this once. */
        ShareGrant: {
            /** @description The token, as it will be listed. */
            share: components["schemas"]["ShareView"];
            /** @description Token that a client of the gateway shows. */
            token: string;
        };
        /** @description A token that admits to one port of one VM. */
        ShareId: string;
        /** @description `POST /v1/vms/{id}/shares`: give out a token for one port of a VM. */
        ShareRequest: {
            /**
             * Format: int32
             * @description Seconds for which it holds, at most ten years; an hour if absent.
             */
            expires_s?: number;
            /** @description Purpose: 128 bytes at most. */
            note?: string;
            /**
             * Format: int32
             * @description TCP port of the guest.
             */
            port: number;
        };
        /** @description A token for one port of one VM, as it is listed. The token itself is kept nowhere. */
        ShareView: {
            /**
             * Format: int64
             * @description Seconds since 1970 from which on it holds no more.
             */
            expires: number;
            /** @description BLAKE3 of the token, in hexadecimal: by this gateways know it. */
            hash: string;
            /** @description Id by which it is taken back. */
            id: components["schemas"]["ShareId"];
            /** @description Purpose. */
            note?: string;
            /**
             * Format: int32
             * @description TCP port of the guest.
             */
            port: number;
        };
        SignalNumber: number;
        /** @description `POST /v1/volumes/{name}/snapshots`: keep a volume as it is. */
        SnapshotVolume: {
            /** @description Name of the snapshot. */
            name: components["schemas"]["VmName"];
        };
        /** @description `POST /v1/substrates/{name}/standby`: keep VMs of a substrate ready, for activations to take. */
        StandbyRequest: {
            /**
             * Format: int32
             * @description So many, none any more if 0; as many as recent demand asks for if absent.
             */
            count?: number | null;
            /**
             * Format: int64
             * @description MiB of the host's memory that they may take together.
             */
            memory_mib?: number;
            /**
             * Format: int64
             * @description Root disk of each VM in bytes, as `activate` takes it; as it was docked if absent.
             */
            vm_disk?: number;
            /**
             * Format: int64
             * @description Memory of each VM in bytes, as `activate` takes it; as it was docked if absent.
             */
            vm_memory?: number;
            /**
             * Format: int32
             * @description vCPUs of each VM; as many as were docked if absent. VMs of each size are kept beside those of
             *     others. With a count of 0, and no size, none is kept of any.
             */
            vm_vcpus?: number | null;
        };
        /** @description VMs of a substrate that are kept ready. */
        StandbyView: {
            /**
             * Format: int32
             * @description Number that its user wants; as many as recent demand asks for if absent.
             */
            count?: number | null;
            /** @description Root disk of each of them; 0: as it was docked. */
            disk?: components["schemas"]["ByteCount"];
            /** @description Memory that one of them takes, as it was measured last; 0 before the first. */
            each: components["schemas"]["ByteCount"];
            /**
             * Format: int64
             * @description VMs that were taken ready since the daemon began.
             */
            hits: number;
            /** @description Memory that they may take together. */
            limit: components["schemas"]["ByteCount"];
            /** @description Memory of each of them. */
            memory?: components["schemas"]["ByteCount"];
            /**
             * Format: int64
             * @description VMs that were wanted while none was ready.
             */
            misses: number;
            /** @description Reason why the last one could not be made. */
            problem?: string | null;
            /**
             * Format: int32
             * @description Number that is ready.
             */
            ready: number;
            /**
             * Format: int32
             * @description vCPUs of each of them.
             */
            vcpus?: number;
            /**
             * Format: int32
             * @description Number that is to be ready now, within the limit and what the host has left.
             */
            wanted: number;
        };
        /**
         * @description Time at which a VM starts its image's entry point.
         * @enum {string}
         */
        Start: "at_boot" | "never";
        /** @description Description of a substrate in an object store. */
        StoredFacts: {
            /** @description Image that its VM, or an ancestor, booted from. */
            image: string;
            /** @description Kind of the substrate. */
            kind: components["schemas"]["SubstrateKind"];
            /** @description Memory of its VMs. */
            memory: components["schemas"]["ByteCount"];
            /** @description Bytes of all its pieces. Others may share them. */
            size: components["schemas"]["ByteCount"];
            /**
             * Format: int32
             * @description Number of vCPUs.
             */
            vcpus: number;
        };
        /** @description A substrate in an object store. */
        StoredSubstrate: {
            facts?: components["schemas"]["StoredFacts"] | null;
            /** @description Public key of the host that has signed it; none if its manifest cannot be used. */
            key?: string | null;
            /** @description Name that it has there. */
            name: string;
            /** @description Reason why it cannot be pulled, if its manifest says so already. */
            problem?: string | null;
            /**
             * Format: int64
             * @description Seconds since 1970 at which it was stored, by the store's clock.
             */
            stored: number;
            /** @description True if that key is this host's own, or trusted here. */
            trusted: boolean;
        };
        /** @description Events of a host from one start of its daemon to the next. */
        StreamId: string;
        /** @description Preparation of a guest before it was docked, by its own account. */
        SubstrateGuest: {
            /**
             * Format: int64
             * @description Files that it removed or emptied.
             */
            cleared: number;
            /** @description Free memory that it gave back. */
            given_back: components["schemas"]["ByteCount"];
            /** @description Problems of the guest, one line each. */
            notes: string[];
            /** @description Services that it stopped. */
            stopped: string[];
            /** @description Memory that it uses, by what for, in the kernel's words. */
            used: {
                [key: string]: components["schemas"]["ByteCount"];
            };
        };
        /** @description `GET /v1/substrates/{name}`: where a substrate's bytes are. */
        SubstrateInspect: {
            backup?: components["schemas"]["BackupView"] | null;
            guest?: components["schemas"]["SubstrateGuest"] | null;
            parts?: components["schemas"]["SubstrateParts"] | null;
            /** @description Sizes that VMs of it can be given. */
            sizes?: components["schemas"]["SubstrateSizes"];
            /** @description The substrate. */
            substrate: components["schemas"]["SubstrateView"];
        };
        /** @description `GET /v1/substrate-key`: the key by which this host signs what it pushes. */
        SubstrateKey: {
            /** @description Public half of the key, an Ed25519 key in 64 hexadecimal digits. */
            public: string;
        };
        /**
         * @description Kind of a substrate.
         * @enum {string}
         */
        SubstrateKind: "public" | "restricted" | "private";
        /** @description Bytes of one part. */
        SubstratePart: {
            /** @description The file that it is kept in. */
            file: components["schemas"]["ByteCount"];
            /** @description Page image of the part. */
            image: components["schemas"]["ImageId"];
            over?: components["schemas"]["ImageId"] | null;
            /** @description Those of them that are not in what it lies over. */
            own: components["schemas"]["ByteCount"];
            /** @description Pages with data, of all that can be read in it. */
            raw: components["schemas"]["ByteCount"];
        };
        /** @description Bytes of a substrate's parts. */
        SubstrateParts: {
            /** @description State of CPUs and devices. */
            devices: components["schemas"]["ByteCount"];
            /** @description Disk of the VM, as far as it differs from the guest image. */
            disk: components["schemas"]["SubstratePart"];
            /** @description Memory of the VM. */
            memory: components["schemas"]["SubstratePart"];
        };
        /** @description Sizes that VMs of a substrate can be given. */
        SubstrateSizes: {
            /** @description Unit by which memory grows. */
            block: components["schemas"]["ByteCount"];
            /** @description Memory that its guest found when it booted. */
            booted: components["schemas"]["ByteCount"];
            /** @description Root disk that it was docked with. */
            disk?: components["schemas"]["ByteCount"];
            /** @description Largest root disk of a VM of it. */
            most_disk?: components["schemas"]["ByteCount"];
            /** @description Most memory of a VM of it. */
            most_memory: components["schemas"]["ByteCount"];
            /**
             * Format: int32
             * @description Most vCPUs of a VM of it.
             */
            most_vcpus: number;
        };
        /** @description A substrate. */
        SubstrateView: {
            /** @description Kept by the host itself: the first boot of an image, which `run` is woken from. */
            boot?: boolean;
            /**
             * Format: int64
             * @description Seconds since 1970.
             */
            created: number;
            /** @description Name that the VM had. */
            from: components["schemas"]["VmName"];
            /** @description Image that the VM, or its ancestor, booted from. */
            image: string;
            /** @description Kind of the substrate. */
            kind: components["schemas"]["SubstrateKind"];
            /** @description Memory of the VMs made of it. */
            memory: components["schemas"]["ByteCount"];
            /** @description Name of the substrate. */
            name: components["schemas"]["VmName"];
            /** @description Name of the user that docked it; none: the host's operator. */
            owner?: string | null;
            /** @description False while it is being docked. */
            ready: boolean;
            /** @description Bytes that it takes on disk, guest image below it apart. */
            size: components["schemas"]["ByteCount"];
            standby?: components["schemas"]["StandbyView"] | null;
            /** @description Those that are kept ready in other sizes, by size. */
            standby_larger?: components["schemas"]["StandbyView"][];
            /**
             * Format: int32
             * @description Number of vCPUs of the VMs made of it.
             */
            vcpus: number;
            /** @description VMs that lie over it. */
            vms: components["schemas"]["VmName"][];
        };
        /**
         * Format: int64
         * @description Term in which a volume is at home at a host: one that is later takes its place.
         */
        Term: number;
        /**
         * @description Terms that a VM has been given beside its machine. Clones have their
         *     parent's.
         */
        Terms: {
            /** @description True if it was paused or stopped for it was not used, and is woken by its next use. */
            asleep?: boolean;
            ends?: components["schemas"]["Ends"] | null;
            /** @description Environment of every command that is run in it from outside. */
            env?: {
                [key: string]: string;
            };
            idle?: components["schemas"]["Idle"] | null;
            /** @description Labels for selecting the VM. */
            labels?: components["schemas"]["Labels"];
            /** @description Tells whether it is started again if it ends by itself. Clones are not. */
            restart?: string;
            /** @description Starts of that kind. */
            restarts?: components["schemas"]["Restarts"];
            /** @description Tokens that were given out for its ports. Clones have none. */
            shares?: components["schemas"]["ShareView"][];
        };
        /** @description A ticket is at another stage. */
        TicketChanged: {
            /**
             * Format: int32
             * @description Clones of it here: reserved, made or being ended.
             */
            clones: number;
            /** @description Stage of the ticket. */
            stage: components["schemas"]["TicketStage"];
            /** @description Units that its numbers count. */
            ticket: components["schemas"]["TicketKind"];
        };
        /** @description A reservation of clones. */
        TicketId: string;
        /**
         * @description Units that a ticket's numbers count.
         * @enum {string}
         */
        TicketKind: "flat" | "hierarchical";
        /**
         * @description Phase of a ticket.
         * @enum {string}
         */
        TicketPhase: "granted" | "cloned" | "killed";
        /** @description One clone of a ticket. */
        TicketSeat: {
            /** @description The host that makes it, by its name here; none: this one. */
            host?: string | null;
            /**
             * Format: int32
             * @description Number of the clone, or of its first process.
             */
            number: number;
            /**
             * Format: int32
             * @description Processes in it that have numbers.
             */
            processes: number;
            /** @description State of the clone. */
            state: components["schemas"]["SeatState"];
            /**
             * Format: int32
             * @description The status it gave when it ended, if it gave one.
             */
            status?: number | null;
            vm?: components["schemas"]["VmId"] | null;
        };
        /**
         * @description Stage of a ticket.
         * @enum {string}
         */
        TicketStage: "granted" | "cloned" | "killed" | "spent";
        /** @description `GET /v1/tickets`: a ticket that is not used up. */
        TicketView: {
            /**
             * @description Clones of the ticket, in order of their numbers; of another host's
             *     ticket those made here.
             */
            clones: components["schemas"]["TicketSeat"][];
            /** @description Id of the ticket. */
            id: components["schemas"]["TicketId"];
            /** @description Units that its numbers count. */
            kind: components["schemas"]["TicketKind"];
            /**
             * @description The VM it was granted to; one of another host, if clones of that one's ticket are
             *     made here.
             */
            owner: components["schemas"]["VmId"];
            /** @description Phase of the ticket. */
            phase: components["schemas"]["TicketPhase"];
        };
        /** @description A token that was just given out. The host keeps no copy of it. */
        TokenGrant: {
            remote?: components["schemas"]["RemoteView"] | null;
            /** @description Secret to send as `Authorization: Bearer …`. */
            token: components["schemas"]["TokenSecret"];
            /** @description The token, as it will be listed. */
            view: components["schemas"]["TokenView"];
        };
        /** @description A token that lets its owner use the API over the network. */
        TokenId: string;
        /** @description `POST /v1/tokens`: give out a token. */
        TokenRequest: {
            /**
             * Format: int64
             * @description Seconds it holds, at most a hundred years; for ever if absent.
             */
            expires_s?: number | null;
            /** @description Name that its owner gives it: 1 to 64 characters, unique. */
            name: string;
        };
        /** @description A token in full. Its debug output hides the secret. */
        TokenSecret: string;
        /** @description A token, without its secret. */
        TokenView: {
            /**
             * Format: int64
             * @description Seconds since 1970 at which it was given out.
             */
            created: number;
            /**
             * Format: int64
             * @description Seconds since 1970 from which on it holds no more; none if it always will.
             */
            expires?: number | null;
            /** @description Id, the part of the token that is no secret. */
            id: components["schemas"]["TokenId"];
            /** @description Name that its owner gave it. */
            name: string;
        };
        /** @description A transfer is over. */
        TransferOver: {
            /** @description Pages that are lost: none if all have come. */
            lost: components["schemas"]["PageCount"];
            /** @description Pages of the image. */
            pages: components["schemas"]["PageCount"];
        };
        /**
         * @description Protocol that a port belongs to.
         * @enum {string}
         */
        Transport: "tcp" | "udp";
        /** @description Keys of hosts whose substrates are trusted. */
        TrustedKeys: {
            /** @description Public keys, each an Ed25519 key in 64 hexadecimal digits. This host's own is not among them. */
            keys: string[];
        };
        /** @description `POST /v1/substrate-keys`: trust what another host has signed. */
        TrustRequest: {
            /** @description Public key of that host, an Ed25519 key in 64 hexadecimal digits. */
            key: string;
        };
        /** @description `POST /v1/volumes/{name}/tune`: change the law by which its blocks are sent ahead, also while a VM writes it. */
        TuneVolume: {
            /**
             * Format: double
             * @description Weight of the ratio of reads to writes; as it is if absent.
             */
            k?: number | null;
            /**
             * Format: double
             * @description Least ratio of reads to writes at which a block is worth sending; as it is if absent.
             */
            s?: number | null;
        };
        /** @description `GET /v1/usage`: what every VM has used of the host. */
        Usage: {
            /**
             * Format: int64
             * @description Time of the look, in microseconds of the host's uptime: the
             *     difference between two answers is the time between them.
             */
            at_us: number;
            /**
             * Format: int32
             * @description Processors of the host.
             */
            cpus: number;
            /**
             * Format: int64
             * @description Processor time that the host wanted and did not get since it started, being
             *     virtual itself, in microseconds of all its processors together.
             */
            stolen_us: number;
            /** @description Every VM, the oldest first. */
            vms: components["schemas"]["VmUsage"][];
        };
        /** @description A vCPU, over the last second. */
        VcpuSched: {
            /**
             * Format: int32
             * @description The CPU it is meant to be on.
             */
            cpu?: number | null;
            /**
             * Format: int64
             * @description Time its turns have given it since it was first scheduled, in ns.
             */
            given_ns: number;
            /**
             * Format: int32
             * @description The guest's number of it.
             */
            index: number;
            /**
             * Format: int32
             * @description Place in its queue; absent if it does not wait.
             */
            ordinate?: number | null;
            /**
             * Format: double
             * @description The part of a CPU it had.
             */
            share: number;
            /**
             * Format: double
             * @description Time running of time running and waiting.
             */
            speed: number;
            /** @description True if a sibling is meant to be on the same CPU. */
            stacked: boolean;
            /**
             * Format: int32
             * @description Thread of the vCPU.
             */
            tid: number;
            /**
             * Format: int64
             * @description Time it has waited for them, in ns.
             */
            waited_ns: number;
        };
        /** @description A VM is in another state. */
        VmChanged: {
            /** @description Reason of its end, if it failed. */
            failure?: string | null;
            /** @description State before. */
            from: components["schemas"]["VmState"];
            /** @description State from here on. */
            to: components["schemas"]["VmState"];
        };
        /** @description A VM is listed from here on. */
        VmCreated: {
            /** @description Guest image of the VM. */
            image: string;
            parent?: components["schemas"]["VmId"] | null;
            /** @description State of the VM: `starting` of one that boots, `running` of a clone. */
            state: components["schemas"]["VmState"];
        };
        /** @description One virtual machine, from its creation to its end. */
        VmId: string;
        /** @description `GET /v1/vms/{id}/inspect`: where a VM's bytes are. */
        VmInspect: {
            /**
             * @description Memory that its guest, or the first of its ancestors, found when it booted: what it has more was
             *     added when it was woken.
             */
            booted?: components["schemas"]["ByteCount"];
            /** @description Disk slices, its own first, then what they lie over. */
            disk: components["schemas"]["DiskSlice"][];
            /** @description Reason why it is emulated and not run by KVM; absent if KVM runs it, or if that is not known. */
            emulated_because?: string | null;
            /** @description Reports of its own forks, the newest last. */
            forks: components["schemas"]["ForkReport"][];
            /** @description Dependence of its disk on others' files, and progress on the way from there. */
            independence?: components["schemas"]["IndependenceView"];
            memory_image?: components["schemas"]["ImageUse"] | null;
            /** @description Rights of the family on the network. */
            network?: components["schemas"]["NetworkPolicy"];
            /**
             * @description Problems of the guest when it came up, one line each: files of its own that could
             *     not be written, hooks that failed. It runs all the same.
             */
            notes?: string[];
            /** @description Pages of memory that are its own. */
            private_pages: components["schemas"]["PageCount"];
            /** @description Paths in the guest that its clones do not inherit. */
            secrets?: string[];
            /** @description The VM. */
            vm: components["schemas"]["VmView"];
            /**
             * Format: int32
             * @description Clones kept warm for its next fork.
             */
            warm: number;
        };
        /**
         * @description Name that a user gives a VM; a host name as of RFC 1123, so that the guest
         *     can carry it: 1 to 63 lower-case letters, digits and inner hyphens.
         */
        VmName: string;
        /**
         * @description Part of a VM that a page image is.
         * @enum {string}
         */
        VmPart: "memory" | "disk";
        /** @description A VM is listed no more. */
        VmRemoved: {
            /** @description Reason of its end, if it failed. */
            failure?: string | null;
            /** @description Last state of the VM. */
            state: components["schemas"]["VmState"];
        };
        /** @description A VM that is scheduled. */
        VmSched: {
            /**
             * Format: double
             * @description The part of the time that a vCPU sleeps.
             */
            asleep: number;
            because?: components["schemas"]["SchedPause"] | null;
            /**
             * Format: int32
             * @description Cap in per cent of a CPU.
             */
            cap?: number | null;
            /**
             * Format: int32
             * @description Greatest difference of its waiting vCPUs' places.
             */
            distance: number;
            /** @description SchedLevel of intervention that is wanted. */
            level: components["schemas"]["SchedLevel"];
            /** @description Name of the VM. */
            name: string;
            /** @description Present level of intervention. */
            now: components["schemas"]["SchedLevel"];
            /** @description True if its vCPUs wait for each other. */
            parallel: components["schemas"]["Parallel"];
            /**
             * Format: int32
             * @description The QEMU's process.
             */
            pid: number;
            /**
             * Format: double
             * @description Sleeps of a vCPU a second.
             */
            sleeps: number;
            /** @description vCPUs of the VM. */
            vcpus: components["schemas"]["VcpuSched"][];
            /**
             * Format: int32
             * @description Weight.
             */
            weight: number;
        };
        /** @description A VM does not answer, or answers again. */
        VmSilence: {
            /** @description Reason of its silence; none: it answers again. */
            why?: string | null;
        };
        /**
         * @description Life of a VM as its owner sees it.
         * @enum {string}
         */
        VmState: "starting" | "warm" | "running" | "paused" | "stopped" | "checkpoint" | "ending";
        /** @description Resources one VM has used. */
        VmUsage: {
            /**
             * Format: int64
             * @description Processor time its QEMU has used since it started, in microseconds;
             *     0 for a VM that does not run, as the sizes below.
             */
            cpu_us: number;
            /**
             * Format: int32
             * @description Forks of it so far.
             */
            forks: number;
            /** @description Bytes of these that are its own. */
            private: components["schemas"]["ByteCount"];
            /** @description Bytes of the host's memory its QEMU has mapped, shared ones included. */
            resident: components["schemas"]["ByteCount"];
            /** @description The VM. */
            vm: components["schemas"]["VmView"];
            /**
             * Format: int64
             * @description Time its virtual processors have waited for one of the host's, in
             *     microseconds: what it has wanted and not got.
             */
            waited_us: number;
            /**
             * Format: int32
             * @description Clones kept warm for its next fork; 0 while a fork is under way.
             */
            warm: number;
        };
        /** @description A VM. */
        VmView: {
            /** @description Accelerator: `kvm` or `tcg`. */
            accel: string;
            /** @description Place on the family's network. */
            address: components["schemas"]["Address"];
            /** @description True if it was paused or stopped for it was not used, and is woken by its next use. */
            asleep?: boolean;
            /** @description Pages of it that are still on another host. */
            awaits?: components["schemas"]["Awaited"][];
            /**
             * Format: int64
             * @description Seconds since 1970 at which it was created.
             */
            created: number;
            ends?: components["schemas"]["Ends"] | null;
            /** @description This life of its memory. */
            epoch: components["schemas"]["Epoch"];
            /** @description Reason why it was ended, unless on request. */
            failure?: string | null;
            /** @description Family of the VM. */
            family: components["schemas"]["FamilyId"];
            fork?: components["schemas"]["ForkId"] | null;
            /**
             * Format: int32
             * @description vCPUs of these that it was granted, if a ticket granted fewer: what it counts for.
             */
            granted?: number | null;
            /** @description The other host it runs on; none if it is this one. */
            host?: string | null;
            /** @description Id of the VM. */
            id: components["schemas"]["VmId"];
            idle?: components["schemas"]["Idle"] | null;
            /** @description Image it, or its ancestor, booted from. */
            image: string;
            /** @description Labels for selecting the VM. */
            labels?: components["schemas"]["Labels"];
            /** @description Place in the family. */
            member: components["schemas"]["Member"];
            /** @description Memory. */
            memory: components["schemas"]["ByteCount"];
            /**
             * Format: int32
             * @description Percent of the last ten seconds in which all programs of the guest waited for memory, where
             *     that is 20 or more: it hardly gets on.
             */
            memory_wait_percent?: number | null;
            /**
             * @description Host that the VM is being handed over to: it is paused, and goes on there or here within
             *     moments. None if it is not.
             */
            moving?: string | null;
            /** @description Name, unique among the VMs that exist. */
            name: components["schemas"]["VmName"];
            parent?: components["schemas"]["VmId"] | null;
            /**
             * Format: int32
             * @description Process id of its QEMU.
             */
            pid?: number | null;
            /** @description Ports of the host that lead to it, and addresses of its own outside. */
            published?: string[];
            /** @description Tells whether it is started again if it ends by itself: `no`, `always`, `on-failure`, `on-failure:N`. */
            restart?: string;
            /**
             * @description Reason why the agent or the QEMU of a running VM does not answer; absent
             *     if both do.
             */
            silence?: string | null;
            /**
             * Format: int64
             * @description Seconds since 1970 at which it is started again; none: it is not.
             */
            starts?: number | null;
            /** @description State of the VM. */
            state: components["schemas"]["VmState"];
            /**
             * Format: int32
             * @description Number of vCPUs.
             */
            vcpus: number;
        };
        /** @description Volume at one instant. */
        VolumeAt: {
            /** @description Snapshot. */
            snapshot: string;
            /** @description Volume. */
            volume: components["schemas"]["VmName"];
        };
        /**
         * @description Place of a block's content.
         * @enum {string}
         */
        VolumeHolding: "unwritten" | "zero" | "here" | "elsewhere";
        /** @description Amount of a volume that is at another host. */
        VolumeLacking: {
            /** @description Host, as it calls itself. */
            at: string;
            /** @description Bytes. */
            size: components["schemas"]["ByteCount"];
        };
        /** @description Law of propagation, applied to a block. */
        VolumeLaw: {
            /**
             * Format: double
             * @description Weight of the ratio of reads to writes.
             */
            k: number;
            /**
             * Format: double
             * @description Priority; none if it was not touched.
             */
            priority?: number | null;
            /**
             * Format: int32
             * @description Reads of the block since counting began; what is long ago counts for less.
             */
            reads: number;
            /**
             * Format: double
             * @description Least ratio at which a block is worth sending.
             */
            s: number;
            /** @description All that in words. */
            words: string;
            /**
             * Format: int32
             * @description Writes of the block, counted likewise.
             */
            writes: number;
        };
        /** @description Copy of a volume at a host that every flush waits for. */
        VolumeMirror: {
            /** @description Action of flushes while it is away. */
            away: components["schemas"]["WhenMirrorAway"];
            /**
             * Format: int64
             * @description Number of writes that it does not hold.
             */
            behind: number;
            /** @description Host. */
            host: string;
            /** @description True if it has promoted its copy: the volume is at home there, and fenced here. */
            is_promoted: boolean;
            /** @description True if there is a connection to it. */
            is_there: boolean;
        };
        /** @description Result of a volume's move. */
        VolumeMoved: {
            /** @description Account of the move. */
            report: components["schemas"]["VolumeMoveReport"];
            /** @description The volume, as the host that was asked has it now: it is at home there, or a copy. */
            volume: components["schemas"]["VolumeView"];
        };
        /**
         * @description Phase of a volume's move.
         * @enum {string}
         */
        VolumeMovePhase: "preparing" | "copying" | "handing-over" | "unsettled";
        /** @description Account of a volume's move. Times are in microseconds, by the clock of the host that it left. */
        VolumeMoveReport: {
            /**
             * Format: int64
             * @description Part of it in which it was at home at neither host.
             */
            hand_over_us: number;
            /** @description Bytes of blocks that stayed, and are fetched from there. */
            left: components["schemas"]["ByteCount"];
            /** @description Bytes that were sent. */
            sent: components["schemas"]["ByteCount"];
            /**
             * Format: int32
             * @description Snapshots of its user that were sent along.
             */
            snapshots: number;
            /** @description Term in which it is at home at the other host. */
            term: components["schemas"]["Term"];
            /**
             * Format: int64
             * @description From the request to the end.
             */
            total_us: number;
        };
        /** @description Way of a volume to another host. */
        VolumeMoving: {
            /** @description Phase. */
            phase: components["schemas"]["VolumeMovePhase"];
            /** @description Bytes that were sent so far. */
            sent: components["schemas"]["ByteCount"];
            /** @description The other host, as it is called here. */
            to: string;
        };
        /** @description Host that fetches blocks of a volume. */
        VolumeNeed: {
            /** @description Host, as it is called here. */
            host: string;
            /** @description Snapshot that has them. */
            snapshot: string;
        };
        /** @description A volume as it was at one instant. */
        VolumeSnapshot: {
            /** @description Name of the snapshot. */
            name: string;
            /** @description Size of the disk. */
            size: components["schemas"]["ByteCount"];
            /** @description Clones and checkpoints that lie over it: it goes with the last of them if a fork made it. */
            vms: components["schemas"]["VmName"][];
        };
        /** @description Transfer of a block. */
        VolumeTransfer: {
            /**
             * Format: int64
             * @description Time, in seconds since 1970.
             */
            at: number;
            /** @description Other host, if it is known. */
            host?: string | null;
            /** @description True if the block went, or came; false if it was left. */
            is_sent: boolean;
            law?: components["schemas"]["VolumeLaw"] | null;
            /** @description Snapshot that it was part of. */
            snapshot: string;
            /** @description Reason. */
            why: string;
        };
        /**
         * @description Parameters of the law by which blocks of a volume are sent ahead: p = K·fr/fw + fr if fr/fw ≥ S, for a block that
         *     was read fr times and written fw times.
         */
        VolumeTuning: {
            /**
             * Format: double
             * @description Weight of the ratio of reads to writes.
             */
            k: number;
            /**
             * Format: double
             * @description Least ratio of reads to writes at which a block is worth sending.
             */
            s: number;
        };
        /** @description A volume. */
        VolumeView: {
            /**
             * @description Host that it is at, if this is a copy of what it was when it left, or is on its way here. A
             *     copy shortens the way back, and can be removed.
             */
            at?: string | null;
            /** @description True if its blocks are encrypted on the host's disk. */
            encrypted?: boolean;
            /**
             * Format: int32
             * @description Number of its last writer: each one that began counts one more.
             */
            epoch: number;
            /** @description Reason why it cannot be opened; then nothing else is known of it. It can be removed. */
            failure?: string | null;
            /** @description Identity, the same on every host that has some of it: 32 hexadecimal digits. None if it cannot be opened. */
            id?: string | null;
            /** @description File of the host with its key. */
            key_file?: string | null;
            /**
             * @description Amounts of it that are at other hosts still, and are fetched from there: because they are read,
             *     or by and by. Empty once all of it is here.
             */
            lacking?: components["schemas"]["VolumeLacking"][];
            law?: components["schemas"]["VolumeTuning"] | null;
            /** @description Other hosts that every flush waits for, and what they hold. */
            mirrors?: components["schemas"]["VolumeMirror"][];
            moving?: components["schemas"]["VolumeMoving"] | null;
            /** @description Name of the volume. */
            name: components["schemas"]["VmName"];
            /** @description Hosts that fetch blocks of it from here. It cannot be removed until they have all. */
            needed_by?: components["schemas"]["VolumeNeed"][];
            /** @description Node that has it, in a cluster. */
            node?: string | null;
            /** @description Size of the disk. */
            size: components["schemas"]["ByteCount"];
            /** @description Snapshots of the volume, the oldest first. */
            snapshots: components["schemas"]["VolumeSnapshot"][];
            /** @description Bytes stored for its blocks, those of snapshots included. */
            stored: components["schemas"]["ByteCount"];
            term?: components["schemas"]["Term"] | null;
            vm?: components["schemas"]["VmName"] | null;
        };
        /** @description `GET /v1/volumes/{name}/why`: reasons for which a block went to other hosts, came from there, or did not. */
        VolumeWhy: {
            /**
             * Format: int64
             * @description Block, of 4096 bytes.
             */
            block: number;
            /** @description Place of its content. */
            holding: components["schemas"]["VolumeHolding"];
            /** @description Hosts that it may be fetched from, or by. */
            hosts: string[];
            /** @description True if older transfers, or parts of them, are not kept. */
            is_cut: boolean;
            /** @description Law, applied to the counts of now. */
            law: components["schemas"]["VolumeLaw"];
            /** @description Offset of the block. */
            offset: components["schemas"]["ByteCount"];
            /** @description Transfers of it, the newest first. Those before the volume's server began are not known. */
            transfers: components["schemas"]["VolumeTransfer"][];
            /**
             * Format: int64
             * @description Number of its last write here; none if it was never written.
             */
            version?: number | null;
        };
        /**
         * @description Right of a family's VMs to open connections to the outside.
         * @enum {string}
         */
        WayOut: "none" | "nat";
        /**
         * @description Action of flushes while a host that is to hold a copy is away.
         * @enum {string}
         */
        WhenMirrorAway: "wait" | "go-on";
        /** @description Characters that fit on a terminal. */
        WindowSize: {
            /**
             * Format: int32
             * @description Characters in a line.
             */
            cols: number;
            /**
             * Format: int32
             * @description Lines.
             */
            rows: number;
        };
    };
    responses: never;
    parameters: never;
    requestBodies: never;
    headers: never;
    pathItems: never;
}
export type ActivateRequest = components['schemas']['ActivateRequest'];
export type ActivateResponse = components['schemas']['ActivateResponse'];
export type Address = components['schemas']['Address'];
export type ApiError = components['schemas']['ApiError'];
export type AtEnd = components['schemas']['AtEnd'];
export type Awaited = components['schemas']['Awaited'];
export type BackupState = components['schemas']['BackupState'];
export type BackupView = components['schemas']['BackupView'];
export type BitRate = components['schemas']['BitRate'];
export type BringVolume = components['schemas']['BringVolume'];
export type ByteCount = components['schemas']['ByteCount'];
export type CheckpointMade = components['schemas']['CheckpointMade'];
export type CheckpointRemoved = components['schemas']['CheckpointRemoved'];
export type CheckpointRequest = components['schemas']['CheckpointRequest'];
export type CloneResult = components['schemas']['CloneResult'];
export type Collected = components['schemas']['Collected'];
export type CollectRequest = components['schemas']['CollectRequest'];
export type CpuSched = components['schemas']['CpuSched'];
export type CreateVolume = components['schemas']['CreateVolume'];
export type DataVolume = components['schemas']['DataVolume'];
export type Delta = components['schemas']['Delta'];
export type Diagnosis = components['schemas']['Diagnosis'];
export type DiskSlice = components['schemas']['DiskSlice'];
export type DiskTransfer = components['schemas']['DiskTransfer'];
export type DockRequest = components['schemas']['DockRequest'];
export type EgressRequest = components['schemas']['EgressRequest'];
export type Ends = components['schemas']['Ends'];
export type EntryPoint = components['schemas']['EntryPoint'];
export type Epoch = components['schemas']['Epoch'];
export type ErrorKind = components['schemas']['ErrorKind'];
export type EventKind = components['schemas']['EventKind'];
export type EventSubject = components['schemas']['EventSubject'];
export type EventVm = components['schemas']['EventVm'];
export type ExecEvent = components['schemas']['ExecEvent'];
export type ExecInput = components['schemas']['ExecInput'];
export type ExecRequest = components['schemas']['ExecRequest'];
export type ExecStarted = components['schemas']['ExecStarted'];
export type ExecTimedOut = components['schemas']['ExecTimedOut'];
export type ExitStatus = components['schemas']['ExitStatus'];
export type ExportFormat = components['schemas']['ExportFormat'];
export type ExportVolume = components['schemas']['ExportVolume'];
export type FamilyHost = components['schemas']['FamilyHost'];
export type FamilyId = components['schemas']['FamilyId'];
export type FamilyNews = components['schemas']['FamilyNews'];
export type FamilyStanding = components['schemas']['FamilyStanding'];
export type FileChange = components['schemas']['FileChange'];
export type FileEntry = components['schemas']['FileEntry'];
export type FileEvent = components['schemas']['FileEvent'];
export type FileKind = components['schemas']['FileKind'];
export type FilesWritten = components['schemas']['FilesWritten'];
export type ForkBegun = components['schemas']['ForkBegun'];
export type ForkId = components['schemas']['ForkId'];
export type ForkMode = components['schemas']['ForkMode'];
export type ForkOver = components['schemas']['ForkOver'];
export type ForkPhase = components['schemas']['ForkPhase'];
export type ForkProgress = components['schemas']['ForkProgress'];
export type ForkReached = components['schemas']['ForkReached'];
export type ForkReport = components['schemas']['ForkReport'];
export type ForkRequest = components['schemas']['ForkRequest'];
export type ForkResponse = components['schemas']['ForkResponse'];
export type ForkStarted = components['schemas']['ForkStarted'];
export type FriendlyLaw = components['schemas']['FriendlyLaw'];
export type FriendlySettings = components['schemas']['FriendlySettings'];
export type GuestCpu = components['schemas']['GuestCpu'];
export type GuestImage = components['schemas']['GuestImage'];
export type Handout = components['schemas']['Handout'];
export type HandoutFamily = components['schemas']['HandoutFamily'];
export type HandoutMachine = components['schemas']['HandoutMachine'];
export type HandoutParent = components['schemas']['HandoutParent'];
export type HandoutVm = components['schemas']['HandoutVm'];
export type HostEvent = components['schemas']['HostEvent'];
export type HostProgress = components['schemas']['HostProgress'];
export type Idle = components['schemas']['Idle'];
export type IfStuck = components['schemas']['IfStuck'];
export type ImageChanged = components['schemas']['ImageChanged'];
export type ImageCommitRequest = components['schemas']['ImageCommitRequest'];
export type ImageId = components['schemas']['ImageId'];
export type ImageOrigin = components['schemas']['ImageOrigin'];
export type ImagePullRequest = components['schemas']['ImagePullRequest'];
export type ImageUse = components['schemas']['ImageUse'];
export type ImageView = components['schemas']['ImageView'];
export type ImportFormat = components['schemas']['ImportFormat'];
export type IndependenceView = components['schemas']['IndependenceView'];
export type Invitation = components['schemas']['Invitation'];
export type InviteRequest = components['schemas']['InviteRequest'];
export type Joined = components['schemas']['Joined'];
export type JoinRequest = components['schemas']['JoinRequest'];
export type KeptCommand = components['schemas']['KeptCommand'];
export type Labels = components['schemas']['Labels'];
export type Lagged = components['schemas']['Lagged'];
export type Landed = components['schemas']['Landed'];
export type Leftover = components['schemas']['Leftover'];
export type Lifetime = components['schemas']['Lifetime'];
export type LinkBudget = components['schemas']['LinkBudget'];
export type LinkView = components['schemas']['LinkView'];
export type ListedVm = components['schemas']['ListedVm'];
export type Mac = components['schemas']['Mac'];
export type Member = components['schemas']['Member'];
export type MigrateRequest = components['schemas']['MigrateRequest'];
export type MigrateResponse = components['schemas']['MigrateResponse'];
export type MigrationOver = components['schemas']['MigrationOver'];
export type MigrationPhase = components['schemas']['MigrationPhase'];
export type MigrationReached = components['schemas']['MigrationReached'];
export type MigrationReport = components['schemas']['MigrationReport'];
export type MirrorVolume = components['schemas']['MirrorVolume'];
export type MoveVolume = components['schemas']['MoveVolume'];
export type NetworkPolicy = components['schemas']['NetworkPolicy'];
export type NewsSecret = components['schemas']['NewsSecret'];
export type NodeChanged = components['schemas']['NodeChanged'];
export type NodeName = components['schemas']['NodeName'];
export type NodeState = components['schemas']['NodeState'];
export type NodeView = components['schemas']['NodeView'];
export type NotStarted = components['schemas']['NotStarted'];
export type Occurrence = components['schemas']['Occurrence'];
export type PackedRuns = components['schemas']['PackedRuns'];
export type PageCount = components['schemas']['PageCount'];
export type PageOrder = components['schemas']['PageOrder'];
export type PageRun = components['schemas']['PageRun'];
export type PageSecret = components['schemas']['PageSecret'];
export type Parallel = components['schemas']['Parallel'];
export type PeerActivateRequest = components['schemas']['PeerActivateRequest'];
export type PeerCpu = components['schemas']['PeerCpu'];
export type PeerDisk = components['schemas']['PeerDisk'];
export type PeerEnd = components['schemas']['PeerEnd'];
export type PeerEndMigration = components['schemas']['PeerEndMigration'];
export type PeerExpect = components['schemas']['PeerExpect'];
export type PeerFamiliesRequest = components['schemas']['PeerFamiliesRequest'];
export type PeerFamiliesResponse = components['schemas']['PeerFamiliesResponse'];
export type PeerForkRequest = components['schemas']['PeerForkRequest'];
export type PeerForkResponse = components['schemas']['PeerForkResponse'];
export type PeerFounder = components['schemas']['PeerFounder'];
export type PeerKept = components['schemas']['PeerKept'];
export type PeerLand = components['schemas']['PeerLand'];
export type PeerMigrated = components['schemas']['PeerMigrated'];
export type PeerMigration = components['schemas']['PeerMigration'];
export type PeerOver = components['schemas']['PeerOver'];
export type PeerPrepare = components['schemas']['PeerPrepare'];
export type PeerProcessEnd = components['schemas']['PeerProcessEnd'];
export type PeerPromise = components['schemas']['PeerPromise'];
export type PeerRound = components['schemas']['PeerRound'];
export type PeerSubstrate = components['schemas']['PeerSubstrate'];
export type PeerTicket = components['schemas']['PeerTicket'];
export type PeerTicketRequest = components['schemas']['PeerTicketRequest'];
export type PeerTicketResponse = components['schemas']['PeerTicketResponse'];
export type PeerVolume = components['schemas']['PeerVolume'];
export type PeerVolumeAnswer = components['schemas']['PeerVolumeAnswer'];
export type PeerVolumeEnd = components['schemas']['PeerVolumeEnd'];
export type PeerVolumeGive = components['schemas']['PeerVolumeGive'];
export type PeerVolumeLand = components['schemas']['PeerVolumeLand'];
export type PeerVolumePrepare = components['schemas']['PeerVolumePrepare'];
export type PeerVolumePrepared = components['schemas']['PeerVolumePrepared'];
export type PeerVolumeStep = components['schemas']['PeerVolumeStep'];
export type PoliceBy = components['schemas']['PoliceBy'];
export type PoliceCap = components['schemas']['PoliceCap'];
export type PoliceFinding = components['schemas']['PoliceFinding'];
export type PoliceSettings = components['schemas']['PoliceSettings'];
export type PoliceState = components['schemas']['PoliceState'];
export type PublishRequest = components['schemas']['PublishRequest'];
export type PullRequest = components['schemas']['PullRequest'];
export type PushRequest = components['schemas']['PushRequest'];
export type PushResponse = components['schemas']['PushResponse'];
export type QuotaRequest = components['schemas']['QuotaRequest'];
export type QuotaView = components['schemas']['QuotaView'];
export type Raw = components['schemas']['Raw'];
export type RemotePages = components['schemas']['RemotePages'];
export type RemoteView = components['schemas']['RemoteView'];
export type RenameRequest = components['schemas']['RenameRequest'];
export type RequestId = components['schemas']['RequestId'];
export type ResizeVolume = components['schemas']['ResizeVolume'];
export type RestartRequest = components['schemas']['RestartRequest'];
export type Restarts = components['schemas']['Restarts'];
export type Room = components['schemas']['Room'];
export type RootVolume = components['schemas']['RootVolume'];
export type RunRequest = components['schemas']['RunRequest'];
export type SchedLevel = components['schemas']['SchedLevel'];
export type SchedMeans = components['schemas']['SchedMeans'];
export type SchedPause = components['schemas']['SchedPause'];
export type SchedPolicy = components['schemas']['SchedPolicy'];
export type SchedProcess = components['schemas']['SchedProcess'];
export type SchedSettings = components['schemas']['SchedSettings'];
export type SchedState = components['schemas']['SchedState'];
export type SeatState = components['schemas']['SeatState'];
export type ShareGrant = components['schemas']['ShareGrant'];
export type ShareId = components['schemas']['ShareId'];
export type ShareRequest = components['schemas']['ShareRequest'];
export type ShareView = components['schemas']['ShareView'];
export type SignalNumber = components['schemas']['SignalNumber'];
export type SnapshotVolume = components['schemas']['SnapshotVolume'];
export type StandbyRequest = components['schemas']['StandbyRequest'];
export type StandbyView = components['schemas']['StandbyView'];
export type Start = components['schemas']['Start'];
export type StoredFacts = components['schemas']['StoredFacts'];
export type StoredSubstrate = components['schemas']['StoredSubstrate'];
export type StreamId = components['schemas']['StreamId'];
export type SubstrateGuest = components['schemas']['SubstrateGuest'];
export type SubstrateInspect = components['schemas']['SubstrateInspect'];
export type SubstrateKey = components['schemas']['SubstrateKey'];
export type SubstrateKind = components['schemas']['SubstrateKind'];
export type SubstratePart = components['schemas']['SubstratePart'];
export type SubstrateParts = components['schemas']['SubstrateParts'];
export type SubstrateSizes = components['schemas']['SubstrateSizes'];
export type SubstrateView = components['schemas']['SubstrateView'];
export type Term = components['schemas']['Term'];
export type Terms = components['schemas']['Terms'];
export type TicketChanged = components['schemas']['TicketChanged'];
export type TicketId = components['schemas']['TicketId'];
export type TicketKind = components['schemas']['TicketKind'];
export type TicketPhase = components['schemas']['TicketPhase'];
export type TicketSeat = components['schemas']['TicketSeat'];
export type TicketStage = components['schemas']['TicketStage'];
export type TicketView = components['schemas']['TicketView'];
export type TokenGrant = components['schemas']['TokenGrant'];
export type TokenId = components['schemas']['TokenId'];
export type TokenRequest = components['schemas']['TokenRequest'];
export type TokenSecret = components['schemas']['TokenSecret'];
export type TokenView = components['schemas']['TokenView'];
export type TransferOver = components['schemas']['TransferOver'];
export type Transport = components['schemas']['Transport'];
export type TrustedKeys = components['schemas']['TrustedKeys'];
export type TrustRequest = components['schemas']['TrustRequest'];
export type TuneVolume = components['schemas']['TuneVolume'];
export type Usage = components['schemas']['Usage'];
export type VcpuSched = components['schemas']['VcpuSched'];
export type VmChanged = components['schemas']['VmChanged'];
export type VmCreated = components['schemas']['VmCreated'];
export type VmId = components['schemas']['VmId'];
export type VmInspect = components['schemas']['VmInspect'];
export type VmName = components['schemas']['VmName'];
export type VmPart = components['schemas']['VmPart'];
export type VmRemoved = components['schemas']['VmRemoved'];
export type VmSched = components['schemas']['VmSched'];
export type VmSilence = components['schemas']['VmSilence'];
export type VmState = components['schemas']['VmState'];
export type VmUsage = components['schemas']['VmUsage'];
export type VmView = components['schemas']['VmView'];
export type VolumeAt = components['schemas']['VolumeAt'];
export type VolumeHolding = components['schemas']['VolumeHolding'];
export type VolumeLacking = components['schemas']['VolumeLacking'];
export type VolumeLaw = components['schemas']['VolumeLaw'];
export type VolumeMirror = components['schemas']['VolumeMirror'];
export type VolumeMoved = components['schemas']['VolumeMoved'];
export type VolumeMovePhase = components['schemas']['VolumeMovePhase'];
export type VolumeMoveReport = components['schemas']['VolumeMoveReport'];
export type VolumeMoving = components['schemas']['VolumeMoving'];
export type VolumeNeed = components['schemas']['VolumeNeed'];
export type VolumeSnapshot = components['schemas']['VolumeSnapshot'];
export type VolumeTransfer = components['schemas']['VolumeTransfer'];
export type VolumeTuning = components['schemas']['VolumeTuning'];
export type VolumeView = components['schemas']['VolumeView'];
export type VolumeWhy = components['schemas']['VolumeWhy'];
export type WayOut = components['schemas']['WayOut'];
export type WhenMirrorAway = components['schemas']['WhenMirrorAway'];
export type WindowSize = components['schemas']['WindowSize'];
export type $defs = Record<string, never>;
export interface operations {
    render: {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Metrics in the text format of Prometheus */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "text/plain; version=0.0.4": string;
                };
            };
        };
    };
    openapi: {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description OpenAPI 3.1 */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": unknown;
                };
            };
        };
    };
    examine: {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Findings */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Diagnosis"];
                };
            };
        };
    };
    repair: {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Findings, and whether they were removed */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Diagnosis"];
                };
            };
        };
    };
    events: {
        parameters: {
            query?: {
                /** @description Family wanted. */
                family?: components["schemas"]["FamilyId"];
                /** @description False: end after the events that are there. */
                follow?: boolean;
                /** @description Kinds wanted, with commas between them: `vm,fork`; all if absent. */
                kind?: string;
                /**
                 * @description Events after this position, as far as they are kept: an id of this stream, or a number;
                 *     0 for all that are kept. If absent, the header `Last-Event-ID`, or else from now on.
                 */
                since?: string;
                /** @description VM wanted, by name or id: its own events, and those of its forks and tickets. */
                vm?: string;
            };
            header?: {
                /** @description As `since`, and before it: browsers send it */
                "Last-Event-ID"?: string | null;
            };
            path?: never;
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description A stream of events; `data` of each is one of these as JSON. It ends with the daemon */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "text/event-stream": components["schemas"]["HostEvent"];
                };
            };
        };
    };
    police: {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description The state; 404 if there is no police */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["PoliceState"];
                };
            };
        };
    };
    begin_police: {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        requestBody: {
            content: {
                "application/json": components["schemas"]["PoliceSettings"];
            };
        };
        responses: {
            /** @description The state */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["PoliceState"];
                };
            };
        };
    };
    end_police: {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Its last state; 404 if there is no police */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["PoliceState"];
                };
            };
        };
    };
    hosts: {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Their names */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": string[];
                };
            };
        };
    };
    images: {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description The images */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["GuestImage"][];
                };
            };
        };
    };
    image: {
        parameters: {
            query?: never;
            header?: never;
            path: {
                /** @description The image's name */
                name: string;
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description The image */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["GuestImage"];
                };
            };
        };
    };
    import_image: {
        parameters: {
            query: {
                /** @description Format of the body. */
                format: components["schemas"]["ImportFormat"];
                /**
                 * @description Of a disk with a partition table: the partition with the root file
                 *     system, counted from 1.
                 */
                partition?: number;
                /**
                 * @description Of a container image: size of the guest's disk in bytes, whole MiB; made up from what is in
                 *     it if absent.
                 */
                size?: number;
            };
            header?: never;
            path: {
                /** @description The image's name from here on */
                name: string;
            };
            cookie?: never;
        };
        requestBody: {
            content: {
                "application/octet-stream": components["schemas"]["Raw"];
            };
        };
        responses: {
            /** @description VMs can be booted from it */
            201: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["GuestImage"];
                };
            };
        };
    };
    build_image: {
        parameters: {
            query?: never;
            header?: never;
            path: {
                /** @description The recipe's name */
                name: string;
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description The image is built */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["GuestImage"];
                };
            };
        };
    };
    remove_image: {
        parameters: {
            query?: never;
            header?: never;
            path: {
                /** @description The image's name */
                name: string;
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description The image, no longer there */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["GuestImage"];
                };
            };
        };
    };
    build_from: {
        parameters: {
            query?: {
                /**
                 * @description Values of the Dockerfile's `ARG`s, as a JSON object: `{"VERSION":"3.1"}`. They may be read in the processes of the host while
                 *     it builds, and in the image's history: no place for secrets.
                 */
                build_args?: string;
                /** @description Path of the Dockerfile in the context; `Dockerfile` if absent. */
                dockerfile?: string;
                /** @description Size of the guest's disk in bytes, whole MiB; made up from what is in the image if absent. */
                size?: number;
                /** @description True if VMs are to start its entry point when they boot. */
                start?: boolean;
            };
            header?: never;
            path: {
                /** @description The image's name from here on */
                name: string;
            };
            cookie?: never;
        };
        requestBody: {
            content: {
                "application/octet-stream": components["schemas"]["Raw"];
            };
        };
        responses: {
            /** @description VMs can be booted from it */
            201: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["GuestImage"];
                };
            };
        };
    };
    commit_image: {
        parameters: {
            query?: never;
            header?: never;
            path: {
                /** @description The image's name from here on */
                name: string;
            };
            cookie?: never;
        };
        requestBody: {
            content: {
                "application/json": components["schemas"]["ImageCommitRequest"];
            };
        };
        responses: {
            /** @description VMs can be booted from it */
            201: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["GuestImage"];
                };
            };
        };
    };
    export_image: {
        parameters: {
            query: {
                /** @description Format of the body. */
                format: components["schemas"]["ExportFormat"];
            };
            header?: never;
            path: {
                /** @description The image's name */
                name: string;
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description The disk */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/octet-stream": components["schemas"]["Raw"];
                };
            };
        };
    };
    pull_image: {
        parameters: {
            query?: never;
            header?: never;
            path: {
                /** @description The image's name from here on */
                name: string;
            };
            cookie?: never;
        };
        requestBody: {
            content: {
                "application/json": components["schemas"]["ImagePullRequest"];
            };
        };
        responses: {
            /** @description VMs can be booted from it */
            201: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["GuestImage"];
                };
            };
        };
    };
    join: {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        requestBody: {
            content: {
                "application/json": components["schemas"]["JoinRequest"];
            };
        };
        responses: {
            /** @description The host is a node now */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Joined"];
                };
            };
        };
    };
    list_links: {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description The links */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["LinkView"][];
                };
            };
        };
    };
    set_link_budget: {
        parameters: {
            query?: never;
            header?: never;
            path: {
                /** @description The host, as it is called here */
                host: string;
            };
            cookie?: never;
        };
        requestBody: {
            content: {
                "application/json": components["schemas"]["LinkBudget"];
            };
        };
        responses: {
            /** @description The link */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["LinkView"];
                };
            };
        };
    };
    list_nodes: {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description The nodes */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["NodeView"][];
                };
            };
        };
    };
    invite: {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        requestBody: {
            content: {
                "application/json": components["schemas"]["InviteRequest"];
            };
        };
        responses: {
            /** @description Token to start the host's daemon with */
            201: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Invitation"];
                };
            };
        };
    };
    remove_node: {
        parameters: {
            query?: {
                /** @description True: also if it is alive and has VMs. They are forgotten, not ended. */
                force?: boolean;
            };
            header?: never;
            path: {
                /** @description Name of the node */
                node: string;
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description The node as it was */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["NodeView"];
                };
            };
        };
    };
    activate: {
        parameters: {
            query?: never;
            header?: never;
            path: {
                /** @description Name of the node */
                node: string;
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description The node as it is now */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["NodeView"];
                };
            };
        };
    };
    drain: {
        parameters: {
            query?: never;
            header?: never;
            path: {
                /** @description Name of the node */
                node: string;
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description The node as it is now */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["NodeView"];
                };
            };
        };
    };
    pages: {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description The page images */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ImageView"][];
                };
            };
        };
    };
    activate_for_peer: {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        requestBody: {
            content: {
                "application/json": components["schemas"]["PeerActivateRequest"];
            };
        };
        responses: {
            /** @description A VM or an error for each VM wanted */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ActivateResponse"];
                };
            };
        };
    };
    clones: {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        requestBody: {
            content: {
                "application/json": components["schemas"]["PeerForkRequest"];
            };
        };
        responses: {
            /** @description One entry a clone: it, or why there is none */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["PeerForkResponse"];
                };
            };
        };
    };
    families: {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        requestBody: {
            content: {
                "application/json": components["schemas"]["PeerFamiliesRequest"];
            };
        };
        responses: {
            /** @description One entry a family */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["PeerFamiliesResponse"];
                };
            };
        };
    };
    migrations: {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        requestBody: {
            content: {
                "application/json": components["schemas"]["PeerMigration"];
            };
        };
        responses: {
            /** @description Stage of the migration */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["PeerMigrated"];
                };
            };
        };
    };
    follow_commands: {
        parameters: {
            query?: never;
            header?: never;
            path: {
                /** @description The migration */
                migration: components["schemas"]["ForkId"];
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Connected */
            101: {
                headers: {
                    [name: string]: unknown;
                };
                content?: never;
            };
        };
    };
    volume: {
        parameters: {
            query: {
                /** @description Snapshot. */
                snapshot: string;
                /** @description Volume, by its name there. */
                volume: components["schemas"]["VmName"];
            };
            header?: never;
            path: {
                /** @description The migration */
                migration: components["schemas"]["ForkId"];
            };
            cookie?: never;
        };
        requestBody: {
            content: {
                "application/octet-stream": components["schemas"]["Raw"];
            };
        };
        responses: {
            /** @description All of it is there, durably */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["PeerMigrated"];
                };
            };
        };
    };
    ticket: {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        requestBody: {
            content: {
                "application/json": components["schemas"]["PeerTicketRequest"];
            };
        };
        responses: {
            /** @description Those that have ended */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["PeerTicketResponse"];
                };
            };
        };
    };
    volume_step: {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        requestBody: {
            content: {
                "application/json": components["schemas"]["PeerVolumeStep"];
            };
        };
        responses: {
            /** @description Stage of the move */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["PeerVolumeAnswer"];
                };
            };
        };
    };
    hold_volume: {
        parameters: {
            query: {
                /** @description Host where it is at home, as it calls itself. */
                from: string;
                /** @description Identity of the volume. */
                id: string;
            };
            header?: never;
            path: {
                /** @description Name of the volume */
                volume: string;
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Connected */
            101: {
                headers: {
                    [name: string]: unknown;
                };
                content?: never;
            };
        };
    };
    supply: {
        parameters: {
            query: {
                /** @description All that is lacking is to come; otherwise what is read. */
                fill: boolean;
                /** @description Identity of the volume. */
                id: string;
                /** @description Snapshot of it, at the host that supplies. */
                snapshot: string;
            };
            header?: never;
            path: {
                /** @description Name of the volume */
                volume: string;
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Connected */
            101: {
                headers: {
                    [name: string]: unknown;
                };
                content?: never;
            };
        };
    };
    ping: {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description The daemon answers */
            204: {
                headers: {
                    [name: string]: unknown;
                };
                content?: never;
            };
        };
    };
    quotas: {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Users with VMs or a quota, by name */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["QuotaView"][];
                };
            };
        };
    };
    set_quota: {
        parameters: {
            query?: never;
            header?: never;
            path: {
                /** @description Name of the user's token */
                user: string;
            };
            cookie?: never;
        };
        requestBody: {
            content: {
                "application/json": components["schemas"]["QuotaRequest"];
            };
        };
        responses: {
            /** @description Every user's */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["QuotaView"][];
                };
            };
        };
    };
    scheduling: {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Policy, CPUs and VMs; 404 if no VM is scheduled */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["SchedState"];
                };
            };
        };
    };
    schedule_process: {
        parameters: {
            query?: never;
            header?: never;
            path: {
                /** @description Process of the QEMU */
                pid: number;
            };
            cookie?: never;
        };
        requestBody: {
            content: {
                "application/json": components["schemas"]["SchedProcess"];
            };
        };
        responses: {
            /** @description The state, once it is done */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["SchedState"];
                };
            };
        };
    };
    release_process: {
        parameters: {
            query?: never;
            header?: never;
            path: {
                /** @description Process of the QEMU */
                pid: number;
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description The state, once it is done */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["SchedState"];
                };
            };
        };
    };
    list_stored_substrates: {
        parameters: {
            query: {
                /** @description Address of the store: `file:///FOLDER` or `s3://BUCKET/PREFIX`. */
                store: string;
            };
            header?: never;
            path?: never;
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description The substrates that are there */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["StoredSubstrate"][];
                };
            };
        };
    };
    remove_stored_substrate: {
        parameters: {
            query: {
                /** @description Name of the substrate there. */
                name: components["schemas"]["VmName"];
                /** @description Address of the store: `file:///FOLDER` or `s3://BUCKET/PREFIX`. */
                store: string;
            };
            header?: never;
            path?: never;
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description What was removed beside it */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Collected"];
                };
            };
        };
    };
    collect_store: {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        requestBody: {
            content: {
                "application/json": components["schemas"]["CollectRequest"];
            };
        };
        responses: {
            /** @description What was removed */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Collected"];
                };
            };
        };
    };
    substrate_key: {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Public half of the key */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["SubstrateKey"];
                };
            };
        };
    };
    list_trusted_keys: {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description The keys */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["TrustedKeys"];
                };
            };
        };
    };
    trust_key: {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        requestBody: {
            content: {
                "application/json": components["schemas"]["TrustRequest"];
            };
        };
        responses: {
            /** @description The keys that are trusted now */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["TrustedKeys"];
                };
            };
        };
    };
    forget_key: {
        parameters: {
            query?: never;
            header?: never;
            path: {
                /** @description The key */
                key: string;
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description The keys that are trusted now */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["TrustedKeys"];
                };
            };
        };
    };
    list_substrates: {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description The substrates */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["SubstrateView"][];
                };
            };
        };
    };
    dock: {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        requestBody: {
            content: {
                "application/json": components["schemas"]["DockRequest"];
            };
        };
        responses: {
            /** @description The substrate; it is on disk */
            201: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["SubstrateView"];
                };
            };
        };
    };
    inspect_substrate: {
        parameters: {
            query?: never;
            header?: never;
            path: {
                /** @description Name of the substrate */
                name: string;
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description The substrate in full */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["SubstrateInspect"];
                };
            };
        };
    };
    remove_substrate: {
        parameters: {
            query?: never;
            header?: never;
            path: {
                /** @description Name of the substrate */
                name: string;
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description The substrate as it was */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["SubstrateView"];
                };
            };
        };
    };
    activate_substrate: {
        parameters: {
            query?: never;
            header?: never;
            path: {
                /** @description Name of the substrate */
                name: string;
            };
            cookie?: never;
        };
        requestBody: {
            content: {
                "application/json": components["schemas"]["ActivateRequest"];
            };
        };
        responses: {
            /** @description A VM or an error for each VM wanted */
            201: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ActivateResponse"];
                };
            };
        };
    };
    activations: {
        parameters: {
            query?: never;
            header?: never;
            path: {
                /** @description Name of the substrate */
                name: string;
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description The activations */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ForkProgress"][];
                };
            };
        };
    };
    push_substrate: {
        parameters: {
            query?: never;
            header?: never;
            path: {
                /** @description Name of the substrate */
                name: string;
            };
            cookie?: never;
        };
        requestBody: {
            content: {
                "application/json": components["schemas"]["PushRequest"];
            };
        };
        responses: {
            /** @description The substrate, and what was sent */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["PushResponse"];
                };
            };
        };
    };
    keep_standby: {
        parameters: {
            query?: never;
            header?: never;
            path: {
                /** @description Its name */
                name: string;
            };
            cookie?: never;
        };
        requestBody: {
            content: {
                "application/json": components["schemas"]["StandbyRequest"];
            };
        };
        responses: {
            /** @description The substrate; they are made in the background */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["SubstrateView"];
                };
            };
        };
    };
    pull_substrate: {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        requestBody: {
            content: {
                "application/json": components["schemas"]["PullRequest"];
            };
        };
        responses: {
            /** @description The substrate */
            201: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["SubstrateView"];
                };
            };
        };
    };
    list_tickets: {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description The tickets */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["TicketView"][];
                };
            };
        };
    };
    remove_ticket: {
        parameters: {
            query?: never;
            header?: never;
            path: {
                /** @description Id of the ticket */
                ticket: components["schemas"]["TicketId"];
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description The ticket as it was */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["TicketView"];
                };
            };
        };
    };
    list_tokens: {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description The tokens, without their secrets */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["TokenView"][];
                };
            };
        };
    };
    create: {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        requestBody: {
            content: {
                "application/json": components["schemas"]["TokenRequest"];
            };
        };
        responses: {
            /** @description The token, shown this once */
            201: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["TokenGrant"];
                };
            };
        };
    };
    remove_token: {
        parameters: {
            query?: never;
            header?: never;
            path: {
                /** @description Name or id */
                token: string;
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description The token as it was */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["TokenView"];
                };
            };
        };
    };
    usage: {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Processor time and memory of each VM */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Usage"];
                };
            };
        };
    };
    list_vms: {
        parameters: {
            query?: {
                /**
                 * @description Those alone that follow this place: `CREATED-FAMILY-MEMBER` of the last VM of the page before, which
                 *     may be gone meanwhile.
                 */
                after?: string;
                /** @description Those that have all these labels: `NAME=VALUE`, separated by commas. */
                labels?: string;
                /**
                 * @description A page of at most so many, of the VMs of all nodes by age. The header `Link` has the address of the
                 *     next page, if there is one.
                 */
                limit?: number;
                /**
                 * @description True: answer once VMs that are being made at the host that is asked are there, or have
                 *     failed. Those whose making begins later are not waited for.
                 */
                made?: boolean;
                /** @description Those that have one of these names or ids, separated by commas. */
                names?: string;
                /**
                 * @description Those in one of these states, separated by commas: `starting`, `running`, `paused`, `stopped`,
                 *     `checkpoint`, `ending`.
                 */
                state?: string;
            };
            header?: never;
            path?: never;
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description The VMs */
            200: {
                headers: {
                    /** @description With `limit`: address of the next page, if there is one */
                    link?: string;
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ListedVm"][];
                };
            };
        };
    };
    run: {
        parameters: {
            query?: {
                /** @description This one; if absent, the one that was asked if it has room. */
                node?: components["schemas"]["NodeName"];
                /** @description True: the one with most vCPUs free. */
                spread?: boolean;
                /** @description False: answer as soon as the request has been accepted. */
                wait?: boolean;
            };
            header?: never;
            path?: never;
            cookie?: never;
        };
        requestBody: {
            content: {
                "application/json": components["schemas"]["RunRequest"];
            };
        };
        responses: {
            /** @description The VM runs: its agent has answered */
            201: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["VmView"];
                };
            };
            /** @description The VM is starting; one that does not come up is listed no more */
            202: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["VmView"];
                };
            };
        };
    };
    one: {
        parameters: {
            query?: never;
            header?: never;
            path: {
                /** @description Name or id */
                vm: string;
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description The VM */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["VmView"];
                };
            };
        };
    };
    remove_vm: {
        parameters: {
            query?: never;
            header?: never;
            path: {
                /** @description Name or id */
                vm: string;
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description The VM as it was */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["VmView"];
                };
            };
        };
    };
    read_archive: {
        parameters: {
            query: {
                /** @description The path; one that does not begin with a slash begins at `/`. */
                path: string;
            };
            header?: never;
            path: {
                /** @description Name or id */
                vm: string;
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description The files; cut off if the guest fails */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/x-tar": components["schemas"]["Raw"];
                };
            };
        };
    };
    write_archive: {
        parameters: {
            query: {
                /** @description The path; one that does not begin with a slash begins at `/`. */
                path: string;
            };
            header?: never;
            path: {
                /** @description Name or id */
                vm: string;
            };
            cookie?: never;
        };
        requestBody: {
            content: {
                "application/x-tar": components["schemas"]["Raw"];
            };
        };
        responses: {
            /** @description They are there */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["FilesWritten"];
                };
            };
        };
    };
    checkpoint: {
        parameters: {
            query?: never;
            header?: never;
            path: {
                /** @description Name or id */
                vm: string;
            };
            cookie?: never;
        };
        requestBody: {
            content: {
                "application/json": components["schemas"]["CheckpointRequest"];
            };
        };
        responses: {
            /** @description The checkpoint; it is on disk */
            201: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["VmView"];
                };
            };
        };
    };
    console: {
        parameters: {
            query?: never;
            header?: never;
            path: {
                /** @description Name or id */
                vm: string;
            };
            cookie?: never;
        };
        requestBody: {
            content: {
                "application/octet-stream": components["schemas"]["Raw"];
            };
        };
        responses: {
            /** @description The input is typed */
            204: {
                headers: {
                    [name: string]: unknown;
                };
                content?: never;
            };
        };
    };
    export_disk: {
        parameters: {
            query: {
                /** @description Format of the body. */
                format: components["schemas"]["ExportFormat"];
            };
            header?: never;
            path: {
                /** @description Name or id */
                vm: string;
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description The disk */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/octet-stream": components["schemas"]["Raw"];
                };
            };
        };
    };
    egress: {
        parameters: {
            query?: never;
            header?: never;
            path: {
                /** @description Name or id */
                vm: string;
            };
            cookie?: never;
        };
        requestBody: {
            content: {
                "application/json": components["schemas"]["EgressRequest"];
            };
        };
        responses: {
            /** @description What the family may do on the network now */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["NetworkPolicy"];
                };
            };
        };
    };
    exec_socket: {
        parameters: {
            query?: never;
            header?: never;
            path: {
                /** @description Name or id */
                vm: string;
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Connected: messages of text, each an object of JSON */
            101: {
                headers: {
                    [name: string]: unknown;
                };
                content?: never;
            };
        };
    };
    exec: {
        parameters: {
            query?: never;
            header?: never;
            path: {
                /** @description Name or id */
                vm: string;
            };
            cookie?: never;
        };
        requestBody: {
            content: {
                "application/json": components["schemas"]["ExecRequest"];
                "application/x-ndjson": components["schemas"]["ExecInput"];
            };
        };
        responses: {
            /** @description A stream of lines, each one event as JSON; the last is `exit`, `not_started`, `timed_out`, `error`, or `started` of a command that is detached */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/x-ndjson": components["schemas"]["ExecEvent"];
                };
            };
        };
    };
    read_file: {
        parameters: {
            query: {
                /** @description Most bytes wanted. */
                limit?: number;
                /** @description First byte wanted. */
                offset?: number;
                /** @description The path. */
                path: string;
            };
            header?: never;
            path: {
                /** @description Name or id */
                vm: string;
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description The bytes; cut off if the guest fails */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/octet-stream": components["schemas"]["Raw"];
                };
            };
        };
    };
    write_file: {
        parameters: {
            query: {
                /**
                 * @description Permission bits in octal, such as `755`; if absent those of the file that is
                 *     there, or 644.
                 */
                mode?: string;
                /** @description Make the folders above that are not there. */
                parents?: boolean;
                /** @description The path. */
                path: string;
            };
            header?: never;
            path: {
                /** @description Name or id */
                vm: string;
            };
            cookie?: never;
        };
        requestBody: {
            content: {
                "application/octet-stream": components["schemas"]["Raw"];
            };
        };
        responses: {
            /** @description The file or folder is there */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["FilesWritten"];
                };
            };
        };
    };
    remove_file: {
        parameters: {
            query: {
                /** @description The path. */
                path: string;
                /** @description A folder with all that is in it. */
                recursive?: boolean;
            };
            header?: never;
            path: {
                /** @description Name or id */
                vm: string;
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description The file or folder is gone */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content?: never;
            };
        };
    };
    list_folder: {
        parameters: {
            query: {
                /** @description The path; one that does not begin with a slash begins at `/`. */
                path: string;
            };
            header?: never;
            path: {
                /** @description Name or id */
                vm: string;
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description The files in it */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["FileEntry"][];
                };
            };
        };
    };
    make_folder: {
        parameters: {
            query: {
                /** @description The path; one that does not begin with a slash begins at `/`. */
                path: string;
            };
            header?: never;
            path: {
                /** @description Name or id */
                vm: string;
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description The file or folder is there */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content?: never;
            };
        };
    };
    fork: {
        parameters: {
            query?: {
                /** @description False: answer as soon as the request has been accepted. */
                wait?: boolean;
            };
            header?: never;
            path: {
                /** @description Name or id */
                vm: string;
            };
            cookie?: never;
        };
        requestBody: {
            content: {
                "application/json": components["schemas"]["ForkRequest"];
            };
        };
        responses: {
            /** @description One entry a clone: it, or why there is none */
            201: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ForkResponse"];
                };
            };
            /** @description Begun; clones are listed as they come */
            202: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ForkStarted"];
                };
            };
        };
    };
    forks: {
        parameters: {
            query?: never;
            header?: never;
            path: {
                /** @description Name or id */
                vm: string;
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description The forks */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ForkProgress"][];
                };
            };
        };
    };
    friendly: {
        parameters: {
            query?: never;
            header?: never;
            path: {
                /** @description Name or id */
                vm: string;
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description `vm`, `friendly` (true if it does), and the state of the program there */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": unknown;
                };
            };
        };
    };
    make_friendly: {
        parameters: {
            query?: never;
            header?: never;
            path: {
                /** @description Name or id */
                vm: string;
            };
            cookie?: never;
        };
        requestBody: {
            content: {
                "application/json": components["schemas"]["FriendlySettings"];
            };
        };
        responses: {
            /** @description The state, as it is shown */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": unknown;
                };
            };
        };
    };
    end_friendly: {
        parameters: {
            query?: never;
            header?: never;
            path: {
                /** @description Name or id */
                vm: string;
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description The state, as it is shown */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": unknown;
                };
            };
        };
    };
    set_idle: {
        parameters: {
            query?: never;
            header?: never;
            path: {
                /** @description Name or id */
                vm: string;
            };
            cookie?: never;
        };
        requestBody: {
            content: {
                "application/json": components["schemas"]["Idle"];
            };
        };
        responses: {
            /** @description The VM as it is now */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["VmView"];
                };
            };
        };
    };
    remove_idle: {
        parameters: {
            query?: never;
            header?: never;
            path: {
                /** @description Name or id */
                vm: string;
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description The VM as it is now */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["VmView"];
                };
            };
        };
    };
    make_independent: {
        parameters: {
            query?: never;
            header?: never;
            path: {
                /** @description Name or id */
                vm: string;
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description The VM, whose disk is being copied, or is its own */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["VmInspect"];
                };
            };
        };
    };
    inspect: {
        parameters: {
            query?: never;
            header?: never;
            path: {
                /** @description Name or id */
                vm: string;
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description The VM in full */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["VmInspect"];
                };
            };
        };
    };
    set_labels: {
        parameters: {
            query?: never;
            header?: never;
            path: {
                /** @description Name or id */
                vm: string;
            };
            cookie?: never;
        };
        requestBody: {
            content: {
                "application/json": components["schemas"]["Labels"];
            };
        };
        responses: {
            /** @description The VM as it is now */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["VmView"];
                };
            };
        };
    };
    set_lifetime: {
        parameters: {
            query?: never;
            header?: never;
            path: {
                /** @description Name or id */
                vm: string;
            };
            cookie?: never;
        };
        requestBody: {
            content: {
                "application/json": components["schemas"]["Lifetime"];
            };
        };
        responses: {
            /** @description The VM as it is now */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["VmView"];
                };
            };
        };
    };
    remove_lifetime: {
        parameters: {
            query?: never;
            header?: never;
            path: {
                /** @description Name or id */
                vm: string;
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description The VM as it is now */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["VmView"];
                };
            };
        };
    };
    logs: {
        parameters: {
            query?: {
                /** @description Go on with what the guest says from now on, until its VM ends. */
                follow?: boolean;
                /**
                 * @description False: nothing of what it has said so far, and so nothing of a VM that does not
                 *     run.
                 */
                history?: boolean;
            };
            header?: never;
            path: {
                /** @description Name or id */
                vm: string;
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description The bytes as the guest wrote them */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/octet-stream": components["schemas"]["Raw"];
                };
            };
        };
    };
    migrate: {
        parameters: {
            query?: never;
            header?: never;
            path: {
                /** @description Name or id */
                vm: string;
            };
            cookie?: never;
        };
        requestBody: {
            content: {
                "application/json": components["schemas"]["MigrateRequest"];
            };
        };
        responses: {
            /** @description The VM goes on there */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["MigrateResponse"];
                };
            };
        };
    };
    move_file: {
        parameters: {
            query: {
                /** @description The path. */
                path: string;
                /** @description The path that it is to have; folders above that are not there are made. */
                to: string;
            };
            header?: never;
            path: {
                /** @description Name or id */
                vm: string;
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description The file or folder is there */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content?: never;
            };
        };
    };
    pause: {
        parameters: {
            query?: never;
            header?: never;
            path: {
                /** @description Name or id */
                vm: string;
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description The VM as it is now */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["VmView"];
                };
            };
        };
    };
    connect_port: {
        parameters: {
            query?: never;
            header?: never;
            path: {
                /** @description The guest's port */
                port: number;
                /** @description Name or id */
                vm: string;
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Connected: the bytes that follow are those of the port */
            101: {
                headers: {
                    [name: string]: unknown;
                };
                content?: never;
            };
        };
    };
    publish: {
        parameters: {
            query?: never;
            header?: never;
            path: {
                /** @description Name or id */
                vm: string;
            };
            cookie?: never;
        };
        requestBody: {
            content: {
                "application/json": components["schemas"]["PublishRequest"];
            };
        };
        responses: {
            /** @description The VM as it is now */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["VmView"];
                };
            };
        };
    };
    unpublish: {
        parameters: {
            query?: {
                /** @description `tcp` if absent; of no meaning for an address. */
                transport?: components["schemas"]["Transport"];
            };
            header?: never;
            path: {
                /** @description The host's port, or the address */
                port: string;
                /** @description Name or id */
                vm: string;
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description The VM as it is now */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["VmView"];
                };
            };
        };
    };
    rename_vm: {
        parameters: {
            query?: never;
            header?: never;
            path: {
                /** @description Name or id */
                vm: string;
            };
            cookie?: never;
        };
        requestBody: {
            content: {
                "application/json": components["schemas"]["RenameRequest"];
            };
        };
        responses: {
            /** @description The VM as it is now */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["VmView"];
                };
            };
        };
    };
    set_restart: {
        parameters: {
            query?: never;
            header?: never;
            path: {
                /** @description Name or id */
                vm: string;
            };
            cookie?: never;
        };
        requestBody: {
            content: {
                "application/json": components["schemas"]["RestartRequest"];
            };
        };
        responses: {
            /** @description The VM as it is now */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["VmView"];
                };
            };
        };
    };
    resume: {
        parameters: {
            query?: never;
            header?: never;
            path: {
                /** @description Name or id */
                vm: string;
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description The VM as it is now */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["VmView"];
                };
            };
        };
    };
    scheduling_of_vm: {
        parameters: {
            query?: never;
            header?: never;
            path: {
                /** @description Name or id */
                vm: string;
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Policy, CPUs and VMs; 404 if no VM is scheduled there */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["SchedState"];
                };
            };
        };
    };
    schedule_vm: {
        parameters: {
            query?: never;
            header?: never;
            path: {
                /** @description Name or id */
                vm: string;
            };
            cookie?: never;
        };
        requestBody: {
            content: {
                "application/json": components["schemas"]["SchedSettings"];
            };
        };
        responses: {
            /** @description The state of the VM's host, once it is done */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["SchedState"];
                };
            };
        };
    };
    release_vm: {
        parameters: {
            query?: never;
            header?: never;
            path: {
                /** @description Name or id */
                vm: string;
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description The state of the VM's host, once it is done */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["SchedState"];
                };
            };
        };
    };
    sessions: {
        parameters: {
            query?: never;
            header?: never;
            path: {
                /** @description Name or id */
                vm: string;
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description They, the oldest first */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["KeptCommand"][];
                };
            };
        };
    };
    attach_session_socket: {
        parameters: {
            query?: {
                /** @description False: nothing of what it writes is wanted, its end alone. */
                output?: boolean;
            };
            header?: never;
            path: {
                /** @description The session */
                pid: number;
                /** @description Name or id */
                vm: string;
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Connected: messages of text, each an object of JSON */
            101: {
                headers: {
                    [name: string]: unknown;
                };
                content?: never;
            };
        };
    };
    attach_session: {
        parameters: {
            query?: {
                /** @description False: nothing of what it writes is wanted, its end alone. */
                output?: boolean;
            };
            header?: never;
            path: {
                /** @description The session */
                pid: number;
                /** @description Name or id */
                vm: string;
            };
            cookie?: never;
        };
        requestBody: {
            content: {
                "application/x-ndjson": components["schemas"]["ExecInput"];
            };
        };
        responses: {
            /** @description A stream of lines, as of `exec` */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/x-ndjson": components["schemas"]["ExecEvent"];
                };
            };
        };
    };
    kill_session: {
        parameters: {
            query?: {
                /**
                 * @description Signal for its first process, by number; 2 and 3, which are keys of a terminal, are for its
                 *     process group, and 9 kills all that it started, too.
                 */
                signal?: number;
            };
            header?: never;
            path: {
                /** @description The session */
                pid: number;
                /** @description Name or id */
                vm: string;
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description The signal is sent */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content?: never;
            };
        };
    };
    list_shares: {
        parameters: {
            query?: never;
            header?: never;
            path: {
                /** @description Name or id */
                vm: string;
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description The tokens, without what makes them tokens */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ShareView"][];
                };
            };
        };
    };
    share_port: {
        parameters: {
            query?: never;
            header?: never;
            path: {
                /** @description Name or id */
                vm: string;
            };
            cookie?: never;
        };
        requestBody: {
            content: {
                "application/json": components["schemas"]["ShareRequest"];
            };
        };
        responses: {
            /** @description The token */
            201: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ShareGrant"];
                };
            };
        };
    };
    remove_share: {
        parameters: {
            query?: never;
            header?: never;
            path: {
                /** @description Id of the token */
                share: components["schemas"]["ShareId"];
                /** @description Name or id */
                vm: string;
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description The token that was */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ShareView"];
                };
            };
        };
    };
    start: {
        parameters: {
            query?: never;
            header?: never;
            path: {
                /** @description Name or id */
                vm: string;
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description The VM as it is now */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["VmView"];
                };
            };
        };
    };
    stat_file: {
        parameters: {
            query: {
                /** @description The path; one that does not begin with a slash begins at `/`. */
                path: string;
            };
            header?: never;
            path: {
                /** @description Name or id */
                vm: string;
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description The file */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["FileEntry"];
                };
            };
        };
    };
    stop: {
        parameters: {
            query?: never;
            header?: never;
            path: {
                /** @description Name or id */
                vm: string;
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description The VM as it is now */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["VmView"];
                };
            };
        };
    };
    watch_folder: {
        parameters: {
            query: {
                /** @description The folder. */
                path: string;
                /** @description With all folders below. */
                recursive?: boolean;
            };
            header?: never;
            path: {
                /** @description Name or id */
                vm: string;
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description The folder is watched: a stream of lines, each one event as JSON; empty ones mean nothing */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/x-ndjson": components["schemas"]["FileEvent"];
                };
            };
        };
    };
    list_volumes: {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description The volumes */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["VolumeView"][];
                };
            };
        };
    };
    create_volume: {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        requestBody: {
            content: {
                "application/json": components["schemas"]["CreateVolume"];
            };
        };
        responses: {
            /** @description The volume; it is on disk */
            201: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["VolumeView"];
                };
            };
        };
    };
    inspect_volume: {
        parameters: {
            query?: never;
            header?: never;
            path: {
                /** @description Name of the volume */
                name: string;
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description The volume */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["VolumeView"];
                };
            };
        };
    };
    remove_volume: {
        parameters: {
            query?: never;
            header?: never;
            path: {
                /** @description Name of the volume */
                name: string;
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description The volume as it was */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["VolumeView"];
                };
            };
        };
    };
    bring_volume: {
        parameters: {
            query?: never;
            header?: never;
            path: {
                /** @description Name of the volume */
                name: string;
            };
            cookie?: never;
        };
        requestBody: {
            content: {
                "application/json": components["schemas"]["BringVolume"];
            };
        };
        responses: {
            /** @description The volume is at home here */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["VolumeMoved"];
                };
            };
        };
    };
    export_volume: {
        parameters: {
            query?: never;
            header?: never;
            path: {
                /** @description Name of the volume */
                name: string;
            };
            cookie?: never;
        };
        requestBody: {
            content: {
                "application/json": components["schemas"]["ExportVolume"];
            };
        };
        responses: {
            /** @description The volume */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["VolumeView"];
                };
            };
        };
    };
    mirror_volume: {
        parameters: {
            query?: never;
            header?: never;
            path: {
                /** @description Name of the volume */
                name: string;
            };
            cookie?: never;
        };
        requestBody: {
            content: {
                "application/json": components["schemas"]["MirrorVolume"];
            };
        };
        responses: {
            /** @description The volume; copies are on their way */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["VolumeView"];
                };
            };
        };
    };
    move_volume: {
        parameters: {
            query?: never;
            header?: never;
            path: {
                /** @description Name of the volume */
                name: string;
            };
            cookie?: never;
        };
        requestBody: {
            content: {
                "application/json": components["schemas"]["MoveVolume"];
            };
        };
        responses: {
            /** @description The volume is at home there; what is here is a copy */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["VolumeMoved"];
                };
            };
        };
    };
    promote_volume: {
        parameters: {
            query?: never;
            header?: never;
            path: {
                /** @description Name of the volume */
                name: string;
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description The volume, as it was at the last flush that this host held */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["VolumeView"];
                };
            };
        };
    };
    resize_volume: {
        parameters: {
            query?: never;
            header?: never;
            path: {
                /** @description Name of the volume */
                name: string;
            };
            cookie?: never;
        };
        requestBody: {
            content: {
                "application/json": components["schemas"]["ResizeVolume"];
            };
        };
        responses: {
            /** @description The volume */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["VolumeView"];
                };
            };
        };
    };
    snapshot_volume: {
        parameters: {
            query?: never;
            header?: never;
            path: {
                /** @description Name of the volume */
                name: string;
            };
            cookie?: never;
        };
        requestBody: {
            content: {
                "application/json": components["schemas"]["SnapshotVolume"];
            };
        };
        responses: {
            /** @description The volume; the snapshot is on disk */
            201: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["VolumeView"];
                };
            };
        };
    };
    remove_volume_snapshot: {
        parameters: {
            query?: never;
            header?: never;
            path: {
                /** @description The volume's name */
                name: string;
                /** @description The snapshot's name */
                snapshot: string;
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description The volume */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["VolumeView"];
                };
            };
        };
    };
    tune_volume: {
        parameters: {
            query?: never;
            header?: never;
            path: {
                /** @description Name of the volume */
                name: string;
            };
            cookie?: never;
        };
        requestBody: {
            content: {
                "application/json": components["schemas"]["TuneVolume"];
            };
        };
        responses: {
            /** @description The volume */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["VolumeView"];
                };
            };
        };
    };
    why_volume_block: {
        parameters: {
            query: {
                /** @description Number of the block, of 4096 bytes */
                block: number;
            };
            header?: never;
            path: {
                /** @description Name of the volume */
                name: string;
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description The law applied to it now, and its latest transfers */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["VolumeWhy"];
                };
            };
        };
    };
}
