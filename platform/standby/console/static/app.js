// Who is signed in decides what is shown: the form, or the board with its one feed.

import { html, render, useEffect, useState } from "./vendor/preact-htm.js";
import { Board } from "./board.js";
import { Feed } from "./feed.js";
import * as session from "./session.js";
import { SignIn } from "./signin.js";
import { Store } from "./store.js";

function App() {
  const [who, setWho] = useState(session.load);
  const [feed, setFeed] = useState(null);
  const [state, setState] = useState({ phase: "idle", message: "" });

  useEffect(() => {
    if (who === null) return undefined;
    const started = new Feed(who, new Store(), (news) => {
      setState(news);
      if (news.phase === "refused") {
        session.clear();
        setWho(null);
      }
    });
    setState({ phase: "connecting", message: "" });
    setFeed(started);
    started.start();
    return () => {
      started.stop();
      setFeed(null);
    };
  }, [who]);

  const signIn = (key, tenant) => setWho(session.save({ key, tenant }));
  const signOut = () => {
    session.clear();
    setState({ phase: "idle", message: "" });
    setWho(null);
  };
  if (who === null || feed === null || !feed.store.hasData) {
    return html`<${SignIn} state=${state} waiting=${who !== null} signIn=${signIn} cancel=${signOut} />`;
  }
  return html`<${Board} feed=${feed} store=${feed.store} session=${who} state=${state} signOut=${signOut} />`;
}

render(html`<${App} />`, document.getElementById("app"));
