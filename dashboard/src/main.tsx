/** The dashboard: who is looking, which page, and the live picture that all pages share. */
import "./style.css";
import { type JSX, render } from "preact";
import { useCallback, useEffect, useState } from "preact/hooks";
import { type Person, logout, whoami } from "./api";
import { type LineState, watch } from "./live";
import { type View, isAlive, totalOf, viewOf } from "./model";
import { AccessPage } from "./pages/access";
import { AdaptationPage } from "./pages/adaptation";
import { AlarmsPage, alarmsOf } from "./pages/alarms";
import { ClientsPage } from "./pages/clients";
import { ComputingPage } from "./pages/computing";
import { LoginForm } from "./pages/login";
import { MapPage } from "./pages/map";
import { MovesPage } from "./pages/moves";
import { OverviewPage } from "./pages/overview";
import { TopicsPage } from "./pages/topics";
import { SettingsPage } from "./pages/settings";
import { SparkPage } from "./pages/spark";
import { WaitingPage } from "./pages/waiting";

interface Page {
  name: string;
  title: string;
  show: (view: View, operator: boolean) => JSX.Element;
}

const nodesOf = (view: View): string[] => view.picture.nodes.filter(isAlive).map((row) => row.node);

const PAGES: Page[] = [
  { name: "map", title: "Map", show: (view, operator) => <MapPage view={view} operator={operator} /> },
  { name: "overview", title: "Overview", show: (view) => <OverviewPage view={view} /> },
  {
    name: "clients",
    title: "Clients",
    show: (view, operator) => <ClientsPage nodes={nodesOf(view)} operator={operator} total={totalOf(view.picture, (one) => one.sessions)} />,
  },
  { name: "access", title: "Access", show: (_view, operator) => <AccessPage operator={operator} /> },
  { name: "topics", title: "Topics", show: (_view, operator) => <TopicsPage operator={operator} /> },
  { name: "moves", title: "Moves", show: (view) => <MovesPage picture={view.picture} /> },
  { name: "waiting", title: "Waiting", show: (view) => <WaitingPage view={view} /> },
  { name: "adaptation", title: "Adaptation", show: (view) => <AdaptationPage picture={view.picture} /> },
  { name: "computing", title: "Computing", show: () => <ComputingPage /> },
  { name: "spark", title: "Spark", show: (view) => <SparkPage picture={view.picture} /> },
  { name: "settings", title: "Settings", show: (view) => <SettingsPage nodes={nodesOf(view)} /> },
  { name: "alarms", title: "Alarms", show: (view) => <AlarmsPage picture={view.picture} /> },
];

const THEMES = ["system", "light", "dark"] as const;
type Theme = (typeof THEMES)[number];

function useTheme(): [Theme, () => void] {
  const [theme, setTheme] = useState<Theme>(() => THEMES.find((one) => one === localStorage.getItem("theme")) ?? "system");
  useEffect(() => {
    localStorage.setItem("theme", theme);
    const dark = window.matchMedia("(prefers-color-scheme: dark)");
    const apply = (): void => {
      document.documentElement.dataset["theme"] = theme === "system" ? (dark.matches ? "dark" : "light") : theme;
    };
    apply();
    dark.addEventListener("change", apply);
    return () => { dark.removeEventListener("change", apply); };
  }, [theme]);
  return [theme, () => { setTheme(THEMES[(THEMES.indexOf(theme) + 1) % THEMES.length] ?? "system"); }];
}

/** On a phone: the edge of the row of pages fades where there are more. */
function fadeEdges(menu: Element): void {
  const { scrollLeft, scrollWidth, clientWidth } = menu;
  menu.classList.toggle("more-before", scrollLeft > 4);
  menu.classList.toggle("more-after", scrollLeft < scrollWidth - clientWidth - 4);
}

function usePage(): string {
  const read = (): string => location.hash.replace(/^#\/?/, "").split("/")[0] ?? "";
  const [page, setPage] = useState(read);
  useEffect(() => {
    const changed = (): void => { setPage(read()); };
    window.addEventListener("hashchange", changed);
    return () => { window.removeEventListener("hashchange", changed); };
  }, []);
  return page;
}

const LINE: Record<LineState, string> = { connecting: "connecting", live: "live", broken: "no connection, trying again" };

function App(): JSX.Element {
  const [person, setPerson] = useState<Person | null>(null);
  const [asking, setAsking] = useState(false);
  const [view, setView] = useState<View | null>(null);
  const [line, setLine] = useState<LineState>("connecting");
  const [theme, nextTheme] = useTheme();
  const name = usePage();
  const ask = useCallback(() => {
    whoami().then(setPerson, () => { setLine("broken"); window.setTimeout(ask, 2000); });
  }, []);
  useEffect(ask, [ask]);
  useEffect(() => {
    if (!person || person.role === null) return;
    return watch((picture) => { setView((before) => viewOf(picture, before)); }, setLine, () => { setPerson(null); setView(null); ask(); });
  }, [person, ask]);
  const page = PAGES.find((one) => one.name === name) ?? PAGES[0];
  useEffect(() => {
    // On a phone the row of pages is wider than the screen.
    document.querySelector("nav a[aria-current]")?.scrollIntoView({ block: "nearest", inline: "center" });
    const menu = document.querySelector("nav");
    if (menu) fadeEdges(menu);
    document.title = `${page?.title ?? ""} – Sterna`;
  }, [page, person]);
  const operator = person?.role === "operator";
  const alarms = view ? alarmsOf(view.picture).length : 0;
  const mustLogIn = person !== null && (person.role === null || asking);
  return (
    <>
      <a class="skip" href="#content" onClick={(event) => { event.preventDefault(); document.getElementById("content")?.focus(); }}>
        To the content
      </a>
      <header class="top">
        <img src="/dashboard/icon.svg" alt="" width="28" height="28" />
        <strong class="brand">Sterna</strong>
        <span class={`line ${line}`} role="status">
          {LINE[line]}
        </span>
        <span class="gap" />
        {person?.role && alarms > 0 && (
          <a class="badge" href="#/alarms" aria-label={`${alarms} ${alarms === 1 ? "alarm" : "alarms"}`}>
            ⚠ {alarms}
          </a>
        )}
        {person?.role && (
          <span class="who">
            <span class="user">{person.user || (person.open ? "this machine" : "")} </span>
            <em>{person.role === "operator" ? "operator" : "read only"}</em>
          </span>
        )}
        <button type="button" onClick={nextTheme} aria-label={`Colours: ${theme}`}>
          {{ system: "◐", light: "☀", dark: "☾" }[theme]}
        </button>
        {person && !person.open && (person.logged_in ? (
          <button type="button" onClick={() => { void logout().then(() => { setPerson(null); setView(null); ask(); }); }}>Log out</button>
        ) : (
          person.role !== null && <button type="button" onClick={() => { setAsking(true); }}>Log in</button>
        ))}
      </header>
      {person?.role && !mustLogIn && (
        <nav aria-label="Pages" onScroll={(event) => { fadeEdges(event.currentTarget); }}>
          {PAGES.map((one) => (
            <a key={one.name} href={`#/${one.name}`} aria-current={one === page ? "page" : undefined}>
              {one.title}
            </a>
          ))}
        </nav>
      )}
      <main id="content" tabIndex={-1}>
        {mustLogIn ? (
          <LoginForm person={person} done={(found) => { setAsking(false); setPerson(found); }} {...(person.role === null ? {} : { cancel: () => { setAsking(false); } })} />
        ) : view && page ? (
          page.show(view, operator)
        ) : (
          <p class="nothing">Waiting for the first picture of the network…</p>
        )}
      </main>
    </>
  );
}

const place = document.getElementById("app");
if (place) {
  place.textContent = "";
  render(<App />, place);
}
